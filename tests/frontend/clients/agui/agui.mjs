// A client of AG-UI without a page: the real `HttpAgent`, driven by one JSON command per line on stdin.
//
//   node agui.mjs FOLDER-WITH-PACKAGES http://127.0.0.1:8000/agui/guide s-1
//
// It answers each command with one JSON line: its messages, its state, what it waits for, and what went wrong.
import { createInterface } from "node:readline";

const [folder, url, threadId] = process.argv.slice(2);
const { HttpAgent } = await import(`${folder}/node_modules/@ag-ui/client/dist/index.mjs`);

let agent = new HttpAgent({ url, threadId });
let events = [];
let waiting = [];

// Commands may wait until the client is told, or shows, something: `{"until": "some text"}`.
function seen(thing) {
  const shown = JSON.stringify(thing);
  waiting = waiting.filter(({ text, done }) => !shown.includes(text) || done());
}

const subscriber = {
  onEvent: ({ event }) => {
    events.push(event);
    seen(event.type);
  },
  onMessagesChanged: ({ messages }) => seen(messages),
};

const run = (parameters = {}) => agent.runAgent(parameters, subscriber);

const commands = {
  send: ({ text, id, parameters }) => {
    agent.addMessage({ id: id ?? crypto.randomUUID(), role: "user", content: text });
    return run(parameters);
  },
  resume: ({ resume }) => run({ resume }),
  result: ({ toolCallId, content }) => {
    agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId, content });
    return run();
  },
  // A refresh: a new client that knows nothing but the name of the conversation.
  come_back: () => {
    agent = new HttpAgent({ url, threadId });
    return run();
  },
  look: () => undefined,
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, until, ...rest } = JSON.parse(line);
  events = [];
  let error = null;
  const done = Promise.resolve(commands[command](rest)).catch((problem) => void (error = String(problem)));
  if (until === undefined) await done;
  else await Promise.race([done, new Promise((resolve) => waiting.push({ text: until, done: resolve }))]);
  const { messages, state, pendingInterrupts } = agent;
  console.log(JSON.stringify({ messages, state, interrupts: pendingInterrupts ?? [], events, error }));
}
