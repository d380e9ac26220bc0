// A2A's own client without a page: one for each tab.
//
//   node a2a.mjs FOLDER-WITH-PACKAGES
//
// A command is answered with what the client made of the server's words, or with the error it threw.
import { serveTabs } from "../tabs.mjs";

const [folder] = process.argv.slice(2);
const { Role, TaskState } = await import(`${folder}/node_modules/@a2a-js/sdk/dist/index.js`);
const { ClientFactory } = await import(`${folder}/node_modules/@a2a-js/sdk/dist/client/index.js`);

const plain = (part) => ({ [part.content.$case]: part.content.value });
const states = (status) => ({
  state: TaskState[status.state].replace("TASK_STATE_", "").toLowerCase(),
  asked: (status.message?.parts ?? []).map(plain),
});
const whole = (task) => ({
  id: task.id,
  context: task.contextId,
  ...states(task.status),
  artifacts: Object.fromEntries(task.artifacts.map((each) => [each.artifactId, each.parts.map(plain)])),
});

await serveTabs(({ api }) => {
  let client;

  function message({ id, text, data, context = "", task = "" }) {
    const contents = [text && { $case: "text", value: text }, data && { $case: "data", value: data }].filter(Boolean);
    const parts = contents.map((content) => ({ content, metadata: undefined, filename: "", mediaType: "" }));
    const said = { messageId: id, contextId: context, taskId: task, role: Role.ROLE_USER, parts, extensions: [] };
    return { tenant: "", message: { ...said, metadata: undefined, referenceTaskIds: [] }, configuration: undefined };
  }

  // The events of a stream, all of them or up to one in which a text is complete; then the reader hangs up.
  async function read(stream, until) {
    const events = [];
    let said = "";
    for await (const { payload } of stream) {
      const { $case: kind, value } = payload;
      if (kind === "task") {
        events.push({ kind, task: whole(value) });
        said += Object.values(events.at(-1).task.artifacts).flat().map((part) => part.text ?? "").join("");
      } else if (kind === "statusUpdate") events.push({ kind, ...states(value.status) });
      else {
        const { artifact, append } = value;
        const parts = artifact.parts.map(plain);
        events.push({ kind, id: artifact.artifactId, append, parts });
        said += parts.map((part) => part.text ?? "").join("");
      }
      if (until !== undefined && said.includes(until)) break;
    }
    return { events };
  }

  const commands = {
    find: async () => {
      client = await new ClientFactory().createFromUrl(api);
      const card = await client.getAgentCard();
      return { name: card.name, streams: card.capabilities.streaming, skills: card.skills.map((each) => each.id) };
    },
    send: async (given) => ({ task: whole(await client.sendMessage(message(given))) }),
    stream: ({ until, ...given }) => read(client.sendMessageStream(message(given)), until),
    get: async ({ task }) => ({ task: whole(await client.getTask({ tenant: "", id: task })) }),
    follow: ({ task, until }) => read(client.resubscribeTask({ tenant: "", id: task }), until),
    cancel: async ({ task }) => ({ task: whole(await client.cancelTask({ tenant: "", id: task })) }),
    list: async ({ context }) => {
      const wanted = { tenant: "", contextId: context, status: 0, pageToken: "", statusTimestampAfter: undefined };
      const { tasks, totalSize } = await client.listTasks(wanted);
      return { tasks: tasks.map(whole), total: totalSize };
    },
  };

  async function run(command, given) {
    try {
      return { error: null, ...(await commands[command](given)) };
    } catch (problem) {
      return { error: { kind: problem.constructor.name, code: problem.code, message: problem.message } };
    }
  }

  return { run, close: () => undefined };
});
