// Sessions by the draft, for any client of the official TypeScript SDK, 1.x or 2.x:
//
//     await client.connect(withSessions(new StreamableHTTPClientTransport(url)));
//
// The first request creates a session, all others go in it, and `client.close()` deletes it. A call whose session the
// server has lost fails with -32043, and the next one begins a new session. Servers without sessions work as before.

const SESSION = "io.modelcontextprotocol/session";
const CAPABILITIES = "io.modelcontextprotocol/clientCapabilities";
const ENVELOPE = ["io.modelcontextprotocol/protocolVersion", "io.modelcontextprotocol/clientInfo", CAPABILITIES];
const SESSIONLESS = ["initialize", "server/discover", "ping"];
const NOT_FOUND = -32043;
const LEAVE_TIMEOUT = 2000; // milliseconds

type Transport = { send(message: any, options?: any): Promise<void>; close(): Promise<void>; onmessage?: any };

export function withSessions<T extends Transport>(transport: T): T {
  const [send, close] = [transport.send.bind(transport), transport.close.bind(transport)];
  const asked = new Map<unknown, (answer: any) => void>(); // requests of our own
  let session: any, offered: boolean | undefined, creating: Promise<void> | undefined, listener: any;
  let envelope = {}; // what every request of the modern era carries

  async function ask(method: string, meta = {}) {
    const id = `sessions-${crypto.randomUUID()}`;
    const answered = new Promise<any>((resolve) => asked.set(id, resolve));
    await send({ jsonrpc: "2.0", id, method, params: { _meta: { ...envelope, ...meta } } });
    const { result, error } = await answered;
    if (error) throw Object.assign(new Error(error.message), error);
    return result;
  }

  async function create() {
    try {
      ({ session } = await ask("sessions/create"));
    } catch (error) {
      if (offered) throw error; // refused; a server that was never asked what it offers may have no sessions
      offered = false;
    } finally {
      creating = undefined;
    }
  }

  async function outgoing(message: any) {
    if (message.id === undefined || message.method === undefined) return message; // a notification, or an answer
    const params = { ...message.params }, meta = { ...params._meta };
    const declare = (to: any) => ({ ...to, experimental: { ...to?.experimental, sessions: {} } });
    if (message.method === "initialize") params.capabilities = declare(params.capabilities);
    if (meta[CAPABILITIES]) meta[CAPABILITIES] = declare(meta[CAPABILITIES]);
    envelope = Object.fromEntries(Object.entries(meta).filter(([name]) => ENVELOPE.includes(name)));
    if (!SESSIONLESS.includes(message.method) && !meta[SESSION]) {
      if (!session && offered !== false) await (creating ??= create());
      if (session) meta[SESSION] = { sessionId: session.sessionId, state: session.state };
    }
    return { ...message, params: { ...params, _meta: meta } };
  }

  function incoming(message: any, extra: any) {
    const answer = message.method === undefined ? asked.get(message.id) : undefined;
    if (answer) return answer(message);
    const { capabilities, _meta: meta } = message.result ?? {};
    if (capabilities) offered = "sessions" in { ...capabilities, ...capabilities.experimental };
    if (session && meta?.[SESSION]?.sessionId === session.sessionId) session = { ...session, ...meta[SESSION] };
    if (message.error?.code === NOT_FOUND && message.error.data?.sessionId === session?.sessionId) session = undefined;
    listener?.(message, extra);
  }

  async function leave() {
    const late = new Promise((resolve) => (AbortSignal.timeout(LEAVE_TIMEOUT).onabort = resolve));
    const deleted = session && ask("sessions/delete", { [SESSION]: { sessionId: session.sessionId } }).catch(() => {});
    await Promise.race([deleted, late]);
    session = undefined;
    await close();
  }

  Object.defineProperty(transport, "onmessage", { get: () => listener && incoming, set: (to) => (listener = to) });
  const forward = async (message: any, options?: any) => send(await outgoing(message), options);
  return Object.assign(transport, { send: forward, close: leave });
}
