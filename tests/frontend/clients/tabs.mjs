// Tabs that are spoken to by one JSON command per line on stdin: `{"tab": 1, "command": "send", "text": "Hello"}`.
//
// Each command is answered with one JSON line. `open` makes a tab, and `close` takes it away with whatever it reads. Many share
// one process, because loading a library takes longer than a whole conversation with it.
import { createInterface } from "node:readline";

// A page goes on after a rejection that nobody handled, such as that of a stream whose server was killed.
process.on("unhandledRejection", (problem) => console.error(problem));

// Commands may wait until the tab shows something: `{"until": "some text"}`.
export class Watch {
  waiting = [];
  until = (text) => new Promise((done) => this.waiting.push({ text, done }));
  seen = (thing) => {
    const shown = JSON.stringify(thing);
    this.waiting = this.waiting.filter(({ text, done }) => !shown.includes(text) || done());
  };
}

export async function serveTabs(openTab) {
  const tabs = new Map();
  for await (const line of createInterface({ input: process.stdin })) {
    const { tab, command, ...given } = JSON.parse(line);
    let answer = {};
    if (command === "open") tabs.set(tab, openTab(given));
    else if (command === "close") {
      tabs.get(tab)?.close();
      tabs.delete(tab);
    } else answer = await tabs.get(tab).run(command, given);
    console.log(JSON.stringify(answer));
  }
}
