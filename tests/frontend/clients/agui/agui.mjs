// Clients of AG-UI without a page: the real `HttpAgent`, one for each tab.
//
//   node agui.mjs FOLDER-WITH-PACKAGES
//
// A command is answered with the client's messages, its state, what it waits for, and what went wrong.
import { serveTabs, Watch } from "../tabs.mjs";

const [folder] = process.argv.slice(2);
const { HttpAgent } = await import(`${folder}/node_modules/@ag-ui/client/dist/index.mjs`);

await serveTabs(({ api: url, id: threadId }) => {
  const watch = new Watch();
  let agent = new HttpAgent({ url, threadId });
  let events = [];

  const subscriber = {
    onEvent: ({ event }) => {
      events.push(event);
      watch.seen(event.type);
    },
    onMessagesChanged: ({ messages }) => watch.seen(messages),
  };

  const ask = (parameters = {}) => agent.runAgent(parameters, subscriber);

  const commands = {
    send: ({ text, id, parameters }) => {
      agent.addMessage({ id: id ?? crypto.randomUUID(), role: "user", content: text });
      return ask(parameters);
    },
    resume: ({ resume }) => ask({ resume }),
    result: ({ toolCallId, content }) => {
      agent.addMessage({ id: crypto.randomUUID(), role: "tool", toolCallId, content });
      return ask();
    },
    // A refresh: a new client that knows nothing but the name of the conversation.
    come_back: () => {
      agent = new HttpAgent({ url, threadId });
      return ask();
    },
    look: () => undefined,
  };

  async function run(command, { until, ...given }) {
    events = [];
    let error = null;
    const done = Promise.resolve(commands[command](given)).catch((problem) => void (error = String(problem)));
    await (until === undefined ? done : Promise.race([done, watch.until(until)]));
    const { messages, state, pendingInterrupts } = agent;
    return { messages, state, interrupts: pendingInterrupts ?? [], events, error };
  }

  return { run, close: () => agent.abortRun() };
});
