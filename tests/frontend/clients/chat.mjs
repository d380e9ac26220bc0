// Chats without a page: the real chat class of the `ai` package, one for each tab.
//
//   node chat.mjs FOLDER-WITH-PACKAGES
//
// A command is answered once the chat has come to rest: with its status, error and messages.
import { existsSync } from "node:fs";
import { serveTabs, Watch } from "./tabs.mjs";

const [folder] = process.argv.slice(2);
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
  constructor(messages, watch) {
    this.messages = messages;
    this.watch = watch;
  }
  pushMessage = (message) => void (this.messages = [...this.messages, message]);
  popMessage = () => void (this.messages = this.messages.slice(0, -1));
  replaceMessage = (at, message) => {
    this.messages = [...this.messages.slice(0, at), this.snapshot(message), ...this.messages.slice(at + 1)];
    this.watch.seen(message);
  };
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends AbstractChat {}

await serveTabs(({ api, id, headers }) => {
  const watch = new Watch();
  const gone = new AbortController();
  let finished;
  let chat = newChat();

  function newChat(messages = []) {
    return new Chat({
      id,
      state: new State(messages, watch),
      transport: new DefaultChatTransport({ api, headers, fetch: fetchUntilGone }),
      sendAutomaticallyWhen: (options) =>
        lastAssistantMessageIsCompleteWithApprovalResponses(options) || lastAssistantMessageIsCompleteWithToolCalls(options),
      onFinish: ({ finishReason }) => void (finished = finishReason),
    });
  }

  function fetchUntilGone(url, options) {
    const signals = [gone.signal, options?.signal].filter(Boolean);
    return fetch(url, { ...options, signal: AbortSignal.any(signals) });
  }

  async function rest() {
    // An answer that was completed sends the next request by itself, a moment later.
    for (let quiet = 0; quiet < 3; ) {
      await new Promise((resolve) => setTimeout(resolve, 20));
      quiet = chat.status === "ready" || chat.status === "error" ? quiet + 1 : 0;
    }
  }

  const commands = {
    send: ({ text, message, body }) => chat.sendMessage(message ?? { text }, { body }),
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

  async function run(command, { until, ...given }) {
    const shown = until && watch.until(until);
    const done = Promise.resolve(commands[command](given)).catch((error) => console.error(error));
    let said;
    if (until) await shown;
    else {
      said = await done;
      await rest();
    }
    return { ...said, finished, status: chat.status, error: chat.error?.message ?? null, messages: chat.messages };
  }

  return { run, close: () => gone.abort() };
});
