// Drives a broker as a Node program would: AWS SDK v3 and sqs-consumer. Prints what it saw as JSON, for pytest to judge.
import {
  CreateQueueCommand,
  GetQueueAttributesCommand,
  GetQueueUrlCommand,
  QueueDoesNotExist,
  ReceiveMessageCommand,
  SendMessageBatchCommand,
  SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";
import { Consumer } from "sqs-consumer";

const endpoint = process.argv[2];
const settings = { region: "us-east-1", credentials: { accessKeyId: "test", secretAccessKey: "test" }, maxAttempts: 1 };
const sqs = new SQSClient({ ...settings, endpoint });
// Without an endpoint of its own, the SDK goes to where the queue's URL points.
const byUrl = new SQSClient({ ...settings, useQueueUrlAsEndpoint: true });

async function create(QueueName, Attributes = {}) {
  return (await sqs.send(new CreateQueueCommand({ QueueName, Attributes }))).QueueUrl;
}

async function arnOf(QueueUrl) {
  const asked = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: ["QueueArn"] });
  return (await sqs.send(asked)).Attributes.QueueArn;
}

/** Runs a consumer until `enough` messages were handled and the last one is deleted; resolves with all of them. */
function consume(queueUrl, enough, handle = () => {}) {
  return new Promise((resolve, reject) => {
    const messages = [];
    const consumer = Consumer.create({
      queueUrl,
      sqs,
      batchSize: 10,
      waitTimeSeconds: 1,
      messageAttributeNames: ["All"],
      messageSystemAttributeNames: ["All"],
      terminateVisibilityTimeout: true,
      suppressFifoWarning: true,
      handleMessage: async (message) => {
        messages.push(message);
        handle(message);
        return message;
      },
    });
    consumer.on("error", reject);
    consumer.on("processing_error", () => {});
    consumer.on("response_processed", () => messages.length >= enough && consumer.stop());
    consumer.on("stopped", () => resolve(messages));
    consumer.start();
  });
}

async function standard() {
  const QueueUrl = await create("js-standard");
  for (let start = 0; start < 100; start += 10) {
    const Entries = Array.from({ length: 10 }, (_, n) => ({
      Id: `${n}`,
      MessageBody: `message ${start + n} – größer\n`,
      MessageAttributes: {
        number: { DataType: "Number", StringValue: `${start + n}` },
        bytes: { DataType: "Binary", BinaryValue: new Uint8Array([0, 255, start + n]) },
      },
    }));
    await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
  }
  const messages = await consume(QueueUrl, 100);
  return {
    bodies: messages.map((message) => message.Body),
    numbers: messages.map((message) => Number(message.MessageAttributes.number.StringValue)),
    bytes: messages.map((message) => Array.from(message.MessageAttributes.bytes.BinaryValue)),
  };
}

async function fifo() {
  const QueueUrl = await create("js-ordered.fifo", { FifoQueue: "true", ContentBasedDeduplication: "true" });
  const answers = [];
  for (const MessageBody of ["a1", "b1", "a2", "a1", "b2", "a3"]) {
    const sent = new SendMessageCommand({ QueueUrl, MessageBody, MessageGroupId: MessageBody[0] });
    answers.push(await sqs.send(sent));
  }
  const messages = await consume(QueueUrl, 5);
  return {
    ids: answers.map((answer) => answer.MessageId),
    sequence: answers.map((answer) => answer.SequenceNumber),
    bodies: messages.map((message) => message.Body),
    groups: messages.map((message) => message.Attributes.MessageGroupId),
  };
}

async function deadLetters() {
  const dead = await create("js-dead");
  const RedrivePolicy = JSON.stringify({ deadLetterTargetArn: await arnOf(dead), maxReceiveCount: 3 });
  const QueueUrl = await create("js-work", { RedrivePolicy });
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "bad" }));
  await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "good" }));
  const messages = await consume(QueueUrl, 4, (message) => {
    if (message.Body === "bad") throw new Error("cannot do it");
  });
  const after = await sqs.send(new ReceiveMessageCommand({ QueueUrl }));
  const [deadLetter] = await consume(dead, 1);
  return {
    tries: messages.filter((message) => message.Body === "bad").map((message) => message.Attributes.ApproximateReceiveCount),
    good: messages.filter((message) => message.Body === "good").length,
    left: (after.Messages ?? []).length,
    deadLetter: { body: deadLetter.Body, source: deadLetter.Attributes.DeadLetterQueueSourceArn },
  };
}

async function queueUrlAsEndpoint() {
  const QueueUrl = await create("js-by-url");
  await byUrl.send(new SendMessageCommand({ QueueUrl, MessageBody: "x" }));
  return (await byUrl.send(new ReceiveMessageCommand({ QueueUrl }))).Messages.length;
}

async function errors() {
  const caught = async (command) => {
    try {
      await sqs.send(command);
    } catch (error) {
      const { name, message, $fault, $metadata } = error;
      const known = error instanceof QueueDoesNotExist;
      return { name, message, fault: $fault, status: $metadata.httpStatusCode, known };
    }
    return "no error";
  };
  const QueueUrl = await create("js-errors");
  return {
    missing: await caught(new GetQueueUrlCommand({ QueueName: "js-nowhere" })),
    invalid: await caught(new ReceiveMessageCommand({ QueueUrl, MaxNumberOfMessages: 11 })),
  };
}

const report = { standard, fifo, deadLetters, queueUrlAsEndpoint, errors };
for (const [name, scenario] of Object.entries(report)) {
  report[name] = await scenario().catch((error) => ({ failed: `${error.stack}` }));
}
console.log(JSON.stringify(report));
