// A small chat page: what a front end engineer writes in an afternoon, on an unmodified useChat.
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const id = new URLSearchParams(location.search).get("session") ?? "harbour";

// First paint: what is stored, and how far it goes. Sending that number when reading on closes the gap between the two
// requests: an answer that ended in between is sent again.
const answer = await fetch(`/sessions/${encodeURIComponent(id)}/snapshot`);
const { messages: stored, streamSequence } = answer.ok ? await answer.json() : { messages: [], streamSequence: 0 };
const transport = new DefaultChatTransport({
  api: "/chat",
  prepareReconnectToStreamRequest: ({ id }) => ({
    api: `/chat/${encodeURIComponent(id)}/stream?after=${streamSequence}`,
  }),
});

function Part({ part, approve }) {
  if (part.type === "text") return <p className="text">{part.text}</p>;
  if (!part.type.startsWith("tool-") && part.type !== "dynamic-tool") return null;
  const name = part.toolName ?? part.type.slice("tool-".length);
  return (
    <div className="tool" data-tool={name} data-state={part.state}>
      {name}: {part.state} {part.state === "output-available" && JSON.stringify(part.output)}
      {part.state === "approval-requested" && (
        <>
          <code>{JSON.stringify(part.input)}</code>{" "}
          <button onClick={() => approve({ id: part.approval.id, approved: true })}>Approve</button>
          <button onClick={() => approve({ id: part.approval.id, approved: false })}>Deny</button>
        </>
      )}
    </div>
  );
}

function Page({ stored }) {
  const { messages, sendMessage, status, error, addToolApprovalResponse } = useChat({
    id,
    messages: stored,
    transport,
    resume: true,
    // After a crash a step is repeated. This version of the library cannot take text back, so the page reloads.
    onData: (part) => part.type === "data-step-discarded" && location.reload(),
    sendAutomaticallyWhen: (options) =>
      lastAssistantMessageIsCompleteWithApprovalResponses(options) || lastAssistantMessageIsCompleteWithToolCalls(options),
  });
  const [text, setText] = useState("");
  return (
    <main data-status={status}>
      {messages.map((message) => (
        <section key={message.id} className={message.role}>
          {message.parts.map((part, at) => (
            <Part key={at} part={part} approve={addToolApprovalResponse} />
          ))}
        </section>
      ))}
      {error && <p className="error">{error.message}</p>}
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!text.trim()) return;
          sendMessage({ text });
          setText("");
        }}
      >
        <input
          placeholder="When is low tide? Or: book me a boat"
          value={text}
          onChange={(event) => setText(event.target.value)}
        />
      </form>
    </main>
  );
}

createRoot(document.body.appendChild(document.createElement("div"))).render(<Page stored={stored} />);
