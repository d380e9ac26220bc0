// OpenAI's own client without a page: one for each tab.
//
//   node openai.mjs FOLDER-WITH-PACKAGES
//
// A command is answered with what the client made of the server's words, or with the error it threw.
import { serveTabs } from "../tabs.mjs";

const [folder] = process.argv.slice(2);
const { default: OpenAI } = await import(`${folder}/node_modules/openai/index.mjs`);

await serveTabs(({ api }) => {
  const client = new OpenAI({ baseURL: api, apiKey: "anybody", maxRetries: 0 });
  const { responses } = client;

  // The events of a stream, all of them or up to one in which a text is complete; then the reader hangs up.
  async function read(stream, until) {
    const events = [];
    let said = "";
    for await (const event of stream) {
      events.push(event);
      if (event.type === "response.output_text.delta") said += event.delta;
      if (until !== undefined && said.includes(until)) break;
    }
    return { events };
  }

  // What the client's own helper put together of the events it saw.
  async function putTogether(stream) {
    const events = [];
    stream.on("event", (event) => events.push(event));
    const response = await stream.finalResponse();
    return { events, response, text: response.output_text };
  }

  async function all(pages) {
    const items = [];
    for await (const item of pages) items.push(item);
    return { items };
  }

  const whole = async (asked) => {
    const response = await asked;
    return { response, text: response.output_text };
  };

  const commands = {
    create: ({ body }) => whole(responses.create(body)),
    retrieve: ({ id }) => whole(responses.retrieve(id)),
    cancel: ({ id }) => whole(responses.cancel(id)),
    remove: async ({ id }) => ({ removed: (await responses.delete(id)) ?? null }),
    items: ({ id, query }) => all(responses.inputItems.list(id, query)),
    models: () => all(client.models.list()),
    stream: async ({ body, until }) => read(await responses.create({ ...body, stream: true }), until),
    follow: async ({ id, query }) => read(await responses.retrieve(id, { ...query, stream: true })),
    helped: ({ body }) => putTogether(responses.stream(body)),
  };

  async function run(command, given) {
    try {
      return { error: null, ...(await commands[command](given)) };
    } catch (problem) {
      const { status, code, param, type, message } = problem;
      return { error: { kind: problem.constructor.name, status, code, param, type, message } };
    }
  }

  return { run, close: () => undefined };
});
