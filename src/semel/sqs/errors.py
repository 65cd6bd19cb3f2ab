"""The errors that SQS returns, each with the shape that SDKs build a class from, its Query code and its HTTP status."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from semel.errors import PermissionDenied, SemelError, Unavailable


class Kind(NamedTuple):
    """How one error is sent: `shape` in JSON's `__type`, `code` in XML and in `x-amzn-query-error`."""

    shape: str
    code: str
    status: int = 400
    fault: str = "Sender"


def _legacy(shape: str, status: int = 400) -> Kind:
    return Kind(shape, f"AWS.SimpleQueueService.{shape}", status)


QUEUE_DOES_NOT_EXIST: Final = Kind("QueueDoesNotExist", "AWS.SimpleQueueService.NonExistentQueue")
QUEUE_NAME_EXISTS: Final = Kind("QueueNameExists", "QueueAlreadyExists")
QUEUE_DELETED_RECENTLY: Final = _legacy("QueueDeletedRecently")
PURGE_QUEUE_IN_PROGRESS: Final = _legacy("PurgeQueueInProgress", 403)
BATCH_ENTRY_IDS_NOT_DISTINCT: Final = _legacy("BatchEntryIdsNotDistinct")
BATCH_REQUEST_TOO_LONG: Final = _legacy("BatchRequestTooLong")
EMPTY_BATCH_REQUEST: Final = _legacy("EmptyBatchRequest")
INVALID_BATCH_ENTRY_ID: Final = _legacy("InvalidBatchEntryId")
TOO_MANY_ENTRIES: Final = _legacy("TooManyEntriesInBatchRequest")
OVER_LIMIT: Final = Kind("OverLimit", "OverLimit", 403)
REQUEST_THROTTLED: Final = Kind("RequestThrottled", "RequestThrottled", 403)
RECEIPT_HANDLE_IS_INVALID: Final = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
INVALID_ADDRESS: Final = Kind("InvalidAddress", "InvalidAddress", 404)
RESOURCE_NOT_FOUND: Final = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
INVALID_ATTRIBUTE_NAME: Final = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE: Final = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_MESSAGE_CONTENTS: Final = Kind("InvalidMessageContents", "InvalidMessageContents")
# Not in the service model, but sent by the service.
INVALID_PARAMETER_VALUE: Final = Kind("InvalidParameterValueException", "InvalidParameterValue")
MISSING_PARAMETER: Final = Kind("MissingRequiredParameterException", "MissingParameter")
INVALID_ACTION: Final = Kind("InvalidAction", "InvalidAction")
UNKNOWN_OPERATION: Final = Kind("UnknownOperationException", "InvalidAction")
NO_OPERATION: Final = Kind("UnknownOperationException", "UnknownOperationException", 404)
SERIALIZATION: Final = Kind("SerializationException", "MalformedInput")
INTERNAL_FAILURE: Final = Kind("InternalFailure", "InternalFailure", 500, "Receiver")
SERVICE_UNAVAILABLE: Final = Kind("ServiceUnavailable", "ServiceUnavailable", 503, "Receiver")
# Signature V4.
ACCESS_DENIED: Final = Kind("AccessDeniedException", "AccessDenied", 403)
INCOMPLETE_SIGNATURE: Final = Kind("IncompleteSignatureException", "IncompleteSignature", 400)
INVALID_CLIENT_TOKEN: Final = Kind("UnrecognizedClientException", "InvalidClientTokenId", 403)
MISSING_AUTHENTICATION_TOKEN: Final = Kind("MissingAuthenticationTokenException", "MissingAuthenticationToken", 403)
SIGNATURE_DOES_NOT_MATCH: Final = Kind("InvalidSignatureException", "SignatureDoesNotMatch", 403)


class ServiceError(SemelError):
    """An error answer of SQS inside the broker. `kind` says how it is sent, `message` is the text that clients match
    on. Catch `SqsError` instead: clients raise only that."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def as_batch_entry(self, entry_id: str) -> dict[str, Any]:
        """Internal. The error as a failed entry of a batch."""
        return {
            "Id": entry_id,
            "SenderFault": self.kind.fault == "Sender",
            "Code": self.kind.code,
            "Message": self.message,
        }


def invalid_value(value: object, parameter: str, reason: str) -> ServiceError:
    return ServiceError(
        INVALID_PARAMETER_VALUE, f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"
    )


def missing(parameter: str) -> ServiceError:
    return ServiceError(MISSING_PARAMETER, f"The request must contain the parameter {parameter}.")


def no_such_queue() -> ServiceError:
    return ServiceError(QUEUE_DOES_NOT_EXIST, "The specified queue does not exist.")


# The client's errors. `semel.sqs.client.error_parser` chooses the class and writes the text.


class SqsError(SemelError):
    """A call to SQS failed, after all attempts. Try again later if `retryable` is true, else follow the text.

    `code` is SQS's own if it gave one; `status` is 0 if there was no answer; `attempts` counts how often the call was
    sent."""

    retryable = False

    def __init__(self, text: str, *, code: str = "", operation: str = "", queue: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.code = code or type(self).__name__
        self.operation = operation
        self.queue = queue
        self.status = status
        self.request_id = ""
        self.attempts = 1


class BadConfiguration(SqsError):
    """The client cannot be created: a profile, region, endpoint or setting is missing or wrong. Set what the text
    names."""


class NoCredentials(BadConfiguration, PermissionDenied):
    """There are no credentials to sign with, or they could not be fetched. Set AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY, or a profile."""


class BadRequest(SqsError):
    """SQS, or the client itself, refuses the request. Change the request: the same one fails again."""


class QueueNotFound(BadRequest):
    """There is no such queue at this endpoint, in this region and account. Check the name, region, account and
    endpoint, or create the queue."""


class QueueExists(BadRequest):
    """CreateQueue found a queue with this name and other attributes. Use its attributes, or another name."""


class ReceiptInvalid(BadRequest):
    """The receipt handle does not belong to this queue, or its message is no longer in flight. Receive the message
    again, and use the new receipt handle."""


class AccessDenied(SqsError, PermissionDenied):
    """The credentials are valid, but do not allow this action. Allow the action in IAM or in the queue's policy."""


class CredentialsRefused(AccessDenied):
    """SQS does not know the credentials, they have expired, or the signature does not match. Renew the credentials, and
    check this machine's clock.

    `server_time` is when SQS refused them, by its own clock."""

    server_time: float | None = None


class OverLimit(SqsError):
    """Too many messages are in flight, or another limit of SQS is reached. Delete messages that are in flight, then
    call again."""


class TooSoon(SqsError):
    """A queue was purged or deleted less than a minute ago. Wait for 60 seconds, then call again."""


class Throttled(SqsError, Unavailable):
    """SQS receives more calls than it allows. Call less often, and try again later."""

    retryable = True


class ServerFailed(SqsError, Unavailable):
    """SQS failed, or a proxy in front of it did. Try again later."""

    retryable = True


class Unreachable(SqsError, Unavailable):
    """The endpoint cannot be reached, closed the connection, or did not answer. The call may have been carried out.
    Check the endpoint and the network, then try again."""

    retryable = True


class Cancelled(SqsError):
    """The call was ended by its `Cancel`. It may have been carried out. Stop, or call again with a new `Cancel`."""
