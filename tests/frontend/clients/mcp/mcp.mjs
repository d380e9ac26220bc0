// MCP's own clients without a page: one for each tab, of either major, and the newer one in either era of the protocol.
//
//   node mcp.mjs FOLDER-WITH-PACKAGES
//
// A command is answered with what the client made of the server's words, or with the error it threw.
import { serveTabs } from "../tabs.mjs";

const [folder] = process.argv.slice(2);
const packages = `${folder}/node_modules/@modelcontextprotocol`;
const older = {
  ...(await import(`${packages}/sdk/dist/esm/client/index.js`)),
  ...(await import(`${packages}/sdk/dist/esm/client/streamableHttp.js`)),
  ...(await import(`${packages}/sdk/dist/esm/types.js`)),
};
const newer = await import(`${packages}/client/dist/index.mjs`);
const MODES = { v1: undefined, v2: "legacy", "v2 modern": { pin: "2026-07-28" } };

await serveTabs(({ api, id: mode }) => {
  const library = mode === "v1" ? older : newer;
  const asked = [];
  let client, transport, token, answers;

  const fillIn = async ({ params }) => {
    asked.push({ message: params.message, fields: Object.keys(params.requestedSchema.properties) });
    return answers.shift();
  };

  const call = (params, options) =>
    mode === "v1" ? client.callTool(params, undefined, options) : client.callTool(params, options);

  const commands = {
    // With forms, there is somebody who fills them in. A connection may be one that another client had before.
    connect: async ({ forms, connection }) => {
      answers = forms ?? [];
      const capabilities = forms === undefined ? {} : { elicitation: {} };
      const versionNegotiation = { mode: MODES[mode] };
      client = new library.Client({ name: "tab", version: "1" }, { capabilities, versionNegotiation });
      if (forms !== undefined)
        client.setRequestHandler(mode === "v1" ? library.ElicitRequestSchema : "elicitation/create", fillIn);
      transport = new library.StreamableHTTPClientTransport(new URL(api), { sessionId: connection });
      await client.connect(transport);
      return { server: client.getServerVersion()?.name };
    },
    tools: async () => ({ tools: (await client.listTools()).tools.map((each) => each.name) }),
    // The result of a call. As soon as its progress tells a text, the client may give it up, or leave as a page does.
    call: async ({ name, arguments: given, cancelAt, leaveAt, resume }) => {
      const told = [];
      const giveUp = new AbortController();
      let leave;
      const left = new Promise((resolve) => (leave = resolve));
      const result = call(
        { name, arguments: given },
        {
          signal: giveUp.signal,
          resumptionToken: resume,
          onresumptiontoken: (at) => void (token = at),
          onprogress: (progress) => {
            told.push(progress);
            if (cancelAt !== undefined && progress.message.includes(cancelAt)) giveUp.abort("enough");
            if (leaveAt !== undefined && progress.message.includes(leaveAt)) leave(undefined);
          },
        },
      );
      result.catch(() => undefined);
      const said = await Promise.race([result, left]);
      if (said === undefined) await client.close();
      return { result: said ?? null, told, asked, token, connection: transport.sessionId };
    },
  };

  async function run(command, given) {
    try {
      return { error: null, ...(await commands[command](given)) };
    } catch (problem) {
      return { error: { kind: problem.constructor.name, code: problem.code, message: problem.message } };
    }
  }

  return { run, close: () => void client?.close() };
});
