// A server of the official TypeScript SDK, which keeps counts by the session that a gateway names.
//
// It prints the port that it listens on, and then what becomes of calls of `wait`: "called" and "left". Requests with
// `x-answer: json` get an answer in one piece, others an event stream; who accepts gzip gets it compressed.

import { createServer } from "node:http";
import { getRequestListener } from "@hono/node-server";
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { WebStandardStreamableHTTPServerTransport } from "@modelcontextprotocol/sdk/server/webStandardStreamableHttp.js";

const print = (line) => process.stdout.write(`${line}\n`);
const counts = new Map();

async function answer(request) {
  const server = new McpServer({ name: "small", version: "1" });
  const text = (value) => ({ content: [{ type: "text", text: value }] });
  server.registerTool("count", {}, () => {
    const ref = request.headers.get("x-mcp-session-ref");
    counts.set(ref, (counts.get(ref) ?? 0) + 1);
    return text(`${ref} ${counts.get(ref)} ${request.headers.get("host")} ${new URL(request.url).search}`);
  });
  server.registerTool("wait", {}, async () => {
    print("called");
    await new Promise((resolve) => request.signal.addEventListener("abort", resolve));
    print("left");
    return text("nobody reads this");
  });
  const transport = new WebStandardStreamableHTTPServerTransport({
    enableJsonResponse: request.headers.get("x-answer") === "json",
  });
  await server.connect(transport);
  return compressed(request, await transport.handleRequest(request));
}

function compressed(request, { status, headers, body }) {
  if (body === null || !request.headers.get("accept-encoding")?.includes("gzip")) return new Response(body, { status, headers });
  const encoded = new Headers([...headers, ["content-encoding", "gzip"]]);
  encoded.delete("content-length");
  return new Response(body.pipeThrough(new CompressionStream("gzip")), { status, headers: encoded });
}

const listening = createServer(getRequestListener(answer)).listen(0, "127.0.0.1", () => print(listening.address().port));
