// A chat without a page: the real chat class of the `ai` package, driven by one JSON command per line on stdin.
//
//   node chat.mjs FOLDER-WITH-PACKAGES http://127.0.0.1:8000/chat s-1
//
// It answers each command with one JSON line, once the chat has come to rest: its status, error and messages.
import { existsSync } from "node:fs";
import { createInterface } from "node:readline";

const [folder, api, id] = process.argv.slice(2);
const dist = `${folder}/node_modules/ai/dist`;
const {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  safeValidateUIMessages,
} = await import(existsSync(`${dist}/index.mjs`) ? `${dist}/index.mjs` : `${dist}/index.js`);

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => {
    this.messages = [...this.messages.slice(0, at), this.snapshot(message), ...this.messages.slice(at + 1)];
    seen(message);
  };
  snapshot = (thing) => structuredClone(thing);
}

// Commands may wait until the answer shows something: `{"until": "some text"}`.
let waiting = [];
function seen(message) {
  const shown = JSON.stringify(message);
  waiting = waiting.filter(({ text, done }) => !shown.includes(text) || done());
}

class Chat extends AbstractChat {}

function newChat(messages = []) {
  const state = new State();
  state.messages = messages;
  return new Chat({
    id,
    state,
    transport: new DefaultChatTransport({ api, headers: JSON.parse(process.env.CHAT_HEADERS ?? "{}") }),
    sendAutomaticallyWhen: (options) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(options) || lastAssistantMessageIsCompleteWithToolCalls(options),
    onFinish: ({ finishReason }) => void (finished = finishReason),
  });
}

let finished;
let chat = newChat();

async function rest() {
  // An answer that was completed sends the next request by itself, a moment later.
  for (let quiet = 0; quiet < 3; ) {
    await new Promise((resolve) => setTimeout(resolve, 20));
    quiet = chat.status === "ready" || chat.status === "error" ? quiet + 1 : 0;
  }
}

const commands = {
  send: ({ text }) => chat.sendMessage({ text }),
  approve: ({ approvalId, approved, reason }) => chat.addToolApprovalResponse({ id: approvalId, approved, reason }),
  output: ({ tool, toolCallId, output }) => chat.addToolOutput({ tool, toolCallId, output }),
  resume: () => chat.resumeStream(),
  regenerate: ({ messageId }) => chat.regenerate({ messageId }),
  stop: () => chat.stop(),
  // A refresh: a new page with what the server has stored.
  refresh: ({ messages }) => void (chat = newChat(messages)),
  look: () => undefined,
  // Whether the library takes these for messages of its own.
  check: async ({ messages }) => {
    const checked = await safeValidateUIMessages({ messages });
    return { valid: checked.success, why: checked.error?.message };
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const { command, until, ...rest_ } = JSON.parse(line);
  const shown = until && new Promise((resolve) => waiting.push({ text: until, done: resolve }));
  const done = Promise.resolve(commands[command](rest_)).catch((error) => console.error(error));
  let said;
  if (until) await shown;
  else {
    said = await done;
    await rest();
  }
  console.log(JSON.stringify({ ...said, finished, status: chat.status, error: chat.error?.message ?? null, messages: chat.messages }));
}
