// Sessions by the draft: client.connect(withSessions(new StreamableHTTPClientTransport(url))), with SDK 1.x or 2.x.
// The first request creates a session, later ones use it, and client.close() deletes it. If the server loses the
// session, one call fails with -32043, and the next begins a new session. Servers without sessions work as before.
const PREFIX = "io.modelcontextprotocol/", SESSION = `${PREFIX}session`, CAPABILITIES = `${PREFIX}clientCapabilities`;
type Transport = { send(message: any, options?: any): Promise<void>; close(): Promise<void>; onmessage?: any };

export function withSessions<T extends Transport>(transport: T): T {
  const [send, close] = [transport.send.bind(transport), transport.close.bind(transport)];
  const asked = new Map<unknown, (answer: any) => void>(); // our own requests
  let session: any, creating: Promise<void> | undefined, envelope = {}, offered = false, listener: any;

  async function ask(method: string, meta = {}) {
    const id = `sessions-${crypto.randomUUID()}`;
    const answered = new Promise<any>((resolve) => asked.set(id, resolve));
    await send({ jsonrpc: "2.0", id, method, params: { _meta: { ...envelope, ...meta } } });
    const { result, error } = await answered;
    if (error) throw Object.assign(new Error(error.message), error);
    return result;
  }

  const create = async () => { ({ session } = await ask("sessions/create").finally(() => (creating = undefined))); };

  async function outgoing(message: any) {
    if (message.id === undefined || [undefined, "ping"].includes(message.method)) return message; // needs no session
    const params = { ...message.params }, meta = { ...params._meta };
    const declare = (to: any) => ({ ...to, experimental: { ...to?.experimental, sessions: {} } });
    if (message.method === "initialize") params.capabilities = declare(params.capabilities);
    if (meta[CAPABILITIES]) meta[CAPABILITIES] = declare(meta[CAPABILITIES]);
    envelope = Object.fromEntries(Object.entries(meta).filter(([key]) => key.startsWith(PREFIX) && key !== SESSION));
    if (offered && !session) await (creating ??= create());
    if (session && !meta[SESSION]) meta[SESSION] = { sessionId: session.sessionId, state: session.state };
    return { ...message, params: { ...params, _meta: meta } };
  }

  function incoming(message: any, extra: any) {
    const { result, error } = message, echoed = result?._meta?.[SESSION], { capabilities } = result ?? {};
    if (message.method === undefined && asked.has(message.id)) return asked.get(message.id)!(message);
    if (capabilities) offered = "sessions" in { ...capabilities, ...capabilities.experimental };
    if (session && echoed?.sessionId === session.sessionId) session = { ...session, ...echoed };
    if (error?.code === -32043 && error.data?.sessionId === session?.sessionId) session = undefined;
    listener?.(message, extra);
  }

  const leave = async () => {
    if (session) await ask("sessions/delete", { [SESSION]: { sessionId: session.sessionId } }).catch(() => {});
    await close();
  };
  Object.defineProperty(transport, "onmessage", { get: () => listener && incoming, set: (to) => (listener = to) });
  return Object.assign(transport, { close: leave, send: async (m: any, o?: any) => send(await outgoing(m), o) });
}
