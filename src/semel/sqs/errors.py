"""The errors that SQS answers with: the shape that SDKs build a class from, its older query code, its HTTP status."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from semel.errors import PermissionDenied, SemelError, Unavailable


class Kind(NamedTuple):
    """How one error travels: `shape` in JSON's `__type`, `code` in XML and in `x-amzn-query-error`."""

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
MESSAGE_NOT_INFLIGHT: Final = _legacy("MessageNotInflight")
UNSUPPORTED_OPERATION: Final = _legacy("UnsupportedOperation")
OVER_LIMIT: Final = Kind("OverLimit", "OverLimit", 403)
REQUEST_THROTTLED: Final = Kind("RequestThrottled", "RequestThrottled", 403)
INVALID_SECURITY: Final = Kind("InvalidSecurity", "InvalidSecurity", 403)
RECEIPT_HANDLE_IS_INVALID: Final = Kind("ReceiptHandleIsInvalid", "ReceiptHandleIsInvalid", 404)
INVALID_ADDRESS: Final = Kind("InvalidAddress", "InvalidAddress", 404)
RESOURCE_NOT_FOUND: Final = Kind("ResourceNotFoundException", "ResourceNotFoundException", 404)
INVALID_ATTRIBUTE_NAME: Final = Kind("InvalidAttributeName", "InvalidAttributeName")
INVALID_ATTRIBUTE_VALUE: Final = Kind("InvalidAttributeValue", "InvalidAttributeValue")
INVALID_MESSAGE_CONTENTS: Final = Kind("InvalidMessageContents", "InvalidMessageContents")
# Not in the service model, but what the service sends.
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
    """One error answer of SQS. `kind` says how it travels, `message` is the text that clients match on."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message

    def as_batch_entry(self, entry_id: str) -> dict[str, Any]:
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


# The client's side: what a call to SQS can end with. `semel.sqs.client.failures` decides which, and writes the text.


class SqsError(SemelError):
    """A call to SQS that did not succeed, after all attempts.

    `code` is SQS's own where it gave one; `status` is 0 if there was no answer; `retryable` says whether the same
    call may well succeed later; `attempts` counts how often it was sent."""

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
    """The client cannot be made: a profile, region, endpoint or setting that is missing or makes no sense."""


class NoCredentials(BadConfiguration, PermissionDenied):
    """There are no credentials to sign with, or they could not be fetched."""


class BadRequest(SqsError):
    """SQS, or the client for it, refuses what was asked; asking again changes nothing."""


class QueueNotFound(BadRequest):
    """There is no such queue at this endpoint, in this region and account."""


class QueueExists(BadRequest):
    """CreateQueue: a queue of this name has other attributes."""


class ReceiptInvalid(BadRequest):
    """The receipt handle is not one of this queue's, or its message is no longer in flight."""


class AccessDenied(SqsError, PermissionDenied):
    """The credentials are good, but may not do this."""


class CredentialsRefused(AccessDenied):
    """SQS does not know the credentials, or no longer, or the signature does not match.

    `server_time` is when SQS said so, by its own clock."""

    server_time: float | None = None


class OverLimit(SqsError):
    """Too many messages in flight, or too much of something else: it passes when some of it is gone."""


class TooSoon(SqsError):
    """A queue was purged or deleted less than a minute ago."""


class Throttled(SqsError, Unavailable):
    """SQS asks to be called less often."""

    retryable = True


class ServerFailed(SqsError, Unavailable):
    """SQS failed, or what answered in its place did."""

    retryable = True


class Unreachable(SqsError, Unavailable):
    """No answer: no connection to the endpoint, or it ended or stayed silent. The call may have been carried out."""

    retryable = True


class Cancelled(SqsError):
    """The call was ended by its `Cancel`. What it asked for may have been carried out."""
