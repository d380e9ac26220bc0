// What AG-UI's own client makes of a run: it checks the order of the events, and keeps messages and state.
//
//   node fold.mjs FOLDER-WITH-PACKAGES
//
// Each line of stdin is a list of events, each line of the answer what a new client holds after them.
import { createInterface } from "node:readline";

const [folder] = process.argv.slice(2);
const { AbstractAgent } = await import(`${folder}/node_modules/@ag-ui/client/dist/index.mjs`);
const { from } = await import(`${folder}/node_modules/rxjs/dist/cjs/index.js`);

class Recorded extends AbstractAgent {
  run() {
    return from(this.events);
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const agent = new Recorded({ threadId: "s" });
  agent.events = JSON.parse(line);
  let error = null;
  await agent.runAgent({}).catch((problem) => void (error = String(problem)));
  const { messages, state, pendingInterrupts } = agent;
  console.log(JSON.stringify({ messages, state, interrupts: pendingInterrupts, error }));
}
