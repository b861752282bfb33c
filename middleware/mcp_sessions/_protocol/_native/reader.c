/* A strict reader of JSON-RPC requests, of the answers that sessions are written into, and of the headers of both.
 *
 * It reads what nearly every client and server writes, and decides and refuses nothing: for what is not of the common
 * form it returns None, and the Python code reads it, or refuses it with the right error.
 * `python -m tests.tools.fuzz --target native` compares the two. What makes it safe:
 * - Only `bytes` are read, which CPython ends with a NUL beyond their size. No JSON text holds a NUL, so every loop
 *   ends there at the latest, and a byte is looked at only after the one before it was seen not to be NUL.
 * - No function calls itself, directly or through others: open arrays and objects are bits of an integer.
 * - Time is linear in the size of the text: a name is compared with fewer than MEMBERS others.
 * - Nothing is kept between two calls, so threads and interpreters share nothing (which this API cannot declare).
 * - References are counted by functions, not macros, which would count what newer versions of Python do not count.
 * Sources: RFC 8259 (JSON), RFC 3629 section 4 (UTF-8), JSON-RPC 2.0 section 4. */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MEMBERS 24  /* of an object whose names are read */
#define BLOCK 16    /* bytes that are looked at together */
#define DEPTH 60    /* arrays and objects in each other; their kinds fit an integer of 64 bits */
#define ID_BYTES 18 /* of an integer with its sign, which fits a `long long` */
#define SESSION "io.modelcontextprotocol/session"

typedef unsigned char Byte;
typedef struct {
    const Byte *p, *end; /* where the reader is, and the NUL */
    long depth;          /* of arrays and objects, at most */
} Text;

typedef struct { const char *at; size_t size; } Slice;

#define LITERAL(text) {text, sizeof text - 1}
#define IS(slice, text) ((slice).size == sizeof text - 1 && !memcmp((slice).at, text, sizeof text - 1))

static Slice slice(const Byte *from, const Byte *to) { return (Slice){(const char *)from, (size_t)(to - from)}; }
static int is_same(Slice a, Slice b) { return a.size == b.size && !memcmp(a.at, b.at, a.size); }

static void skip_space(Text *t) {
    while (*t->p == ' ' || *t->p == '\n' || *t->p == '\r' || *t->p == '\t')
        t->p++;
}

static int skip_byte(Text *t, Byte expected) { return *t->p == expected && ++t->p; }

static int skip(Text *t, Slice expected) {
    int is_next = (size_t)(t->end - t->p) >= expected.size && !memcmp(t->p, expected.at, expected.size);
    t->p += is_next ? expected.size : 0;
    return is_next;
}

/* How many of a block of bytes come before one that is a quote, a backslash, a control character or not ASCII, which is
 * negative here. Where compilers have no vectors, or the first byte is not the lowest, all are looked at one by one. */
static int plain_bytes(const Byte *p) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    signed char bytes __attribute__((vector_size(BLOCK)));
    uint64_t found[2];
    memcpy(&bytes, p, BLOCK);
    bytes = (bytes < ' ') | (bytes == '"') | (bytes == '\\');
    memcpy(found, &bytes, BLOCK);
    return found[0] ? __builtin_ctzll(found[0]) >> 3 : found[1] ? 8 + (__builtin_ctzll(found[1]) >> 3) : BLOCK;
#else
    return 0;
#endif
}

/* The length of an escape, or 0. Surrogates are left to the Python code, which knows what to do with lone ones. */
static int escape(const Byte *p) {
    if (p[1] != 'u')
        return p[1] && strchr("\"\\/bfnrt", p[1]) ? 2 : 0;
    if (strspn((const char *)p + 2, "0123456789abcdefABCDEF") < 4)
        return 0;
    return (p[2] | 0x20) == 'd' && p[3] >= '8' ? 0 : 6;
}

/* The length of the UTF-8 sequence that begins with a byte of 0x80 or more, or 0. */
static int sequence(const Byte *p) {
    Byte c = p[0], low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80, high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    int i = 2, size = c < 0xC2 || c > 0xF4 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (!size || p[1] < low || p[1] > high)
        return 0;
    while (i < size && (p[i] & 0xC0) == 0x80)
        i++;
    return i == size ? size : 0;
}

typedef enum { WRONG, PLAIN, OTHER } Spelling; /* of a string: nothing but ASCII without escapes, or more */

/* Read a string from `p`, before which all is plain; the slice is what stands between its quotes. */
static Spelling read_rest(Text *t, const Byte *p, Slice *s) {
    Spelling found = PLAIN;
    int size;
    for (;;) {
        while (*p >= ' ' && *p < 0x80 && *p != '"' && *p != '\\')
            p++;
        if (*p == '"') {
            *s = slice(t->p + 1, p);
            t->p = p + 1;
            return found;
        }
        if (*p < ' ')
            return WRONG;
        for (found = OTHER; *p >= 0x80 || *p == '\\'; p += size) /* as most alphabets have them, one after the other */
            if (!(size = *p == '\\' ? escape(p) : sequence(p)))
                return WRONG;
        for (size = BLOCK; size == BLOCK && t->end - p >= BLOCK; p += size)
            size = plain_bytes(p);
    }
}

/* Read a string. (With the rest in here, each would pay for the registers that it takes.) */
static Spelling read_string(Text *t, Slice *s) {
    const Byte *from = t->p + 1, *p = from;
    int size;
    if (*t->p != '"')
        return WRONG;
    do {
        if (t->end - p < BLOCK)
            return read_rest(t, p, s);
        p += size = plain_bytes(p);
    } while (size == BLOCK);
    if (*p != '"')
        return read_rest(t, p, s);
    *s = slice(from, p);
    t->p = p + 1;
    return PLAIN;
}

static int skip_digits(Text *t) {
    const Byte *from = t->p;
    while (*t->p >= '0' && *t->p <= '9')
        t->p++;
    return t->p > from;
}

static int skip_integer(Text *t) { return skip_byte(t, '-'), skip_byte(t, '0') || skip_digits(t); }

static int skip_number(Text *t) {
    if (!skip_integer(t) || (skip_byte(t, '.') && !skip_digits(t)))
        return 0;
    if (!skip_byte(t, 'e') && !skip_byte(t, 'E'))
        return 1;
    t->p += *t->p == '+' || *t->p == '-';
    return skip_digits(t);
}

static int skip_scalar(Text *t) {
    static const Slice T = LITERAL("true"), F = LITERAL("false"), N = LITERAL("null");
    Slice unused;
    return read_string(t, &unused) || skip(t, T) || skip(t, F) || skip(t, N) || skip_number(t);
}

static Spelling read_name(Text *t, Slice *name) {
    Spelling found;
    skip_space(t);
    found = read_string(t, name);
    skip_space(t);
    return skip_byte(t, ':') ? found : WRONG;
}

/* Skip a value that lies in so many arrays and objects. */
static int skip_value(Text *t, int level) {
    Slice unused;
    uint64_t objects = 0; /* a bit for each open array (0) and object (1), the innermost being the lowest */
    int open = 0;
    for (;;) {
        skip_space(t);
        if (*t->p == '{' || *t->p == '[') {
            if (level + open >= t->depth)
                return 0;
            objects = objects << 1 | (*t->p++ == '{');
            open++;
            skip_space(t);
            if (*t->p != (objects & 1 ? '}' : ']')) {
                if (objects & 1 && !read_name(t, &unused))
                    return 0;
                continue;
            }
        } else {
            if (!skip_scalar(t))
                return 0;
            if (!open)
                return 1;
            skip_space(t);
        }
        while (*t->p == (objects & 1 ? '}' : ']')) {
            t->p++;
            objects >>= 1;
            if (!--open)
                return 1;
            skip_space(t);
        }
        if (!skip_byte(t, ',') || (objects & 1 && !read_name(t, &unused)))
            return 0;
    }
}

typedef struct {
    Slice names[MEMBERS], name; /* so far, and the last of these */
    int count, is_whole;        /* of these, or -1 before its brace; whether it has been read to its end */
} Object;

/* Go to the value of the next member of an object at this level, if there is one. If there is none and it is not
 * whole, it is not of the common form, in which each name is plain and comes once. */
static int next_member(Text *t, int level, Object *o) {
    int i;
    if (o->count < 0) {
        o->count = o->is_whole = 0;
        if (level >= t->depth || !skip_byte(t, '{'))
            return 0;
    }
    skip_space(t);
    if ((o->is_whole = skip_byte(t, '}')) || (o->count > 0 && !skip_byte(t, ',')) || o->count == MEMBERS
        || read_name(t, &o->name) != PLAIN)
        return 0;
    for (i = 0; i < o->count; i++)
        if (is_same(o->names[i], o->name))
            return 0;
    o->names[o->count++] = o->name;
    skip_space(t);
    return 1;
}

/* The place of a name among others, `count` where it is not there, or -1 where it is there in another case. */
static int place_of(Slice name, const Slice *others, int count) {
    for (int i = 0; i < count; i++)
        if (others[i].size == name.size && (*others[i].at | 0x20) == (*name.at | 0x20)) {
            if (!memcmp(name.at, others[i].at, name.size))
                return i;
            if (!PyOS_mystrnicmp(name.at, others[i].at, (Py_ssize_t)name.size))
                return -1;
        }
    return count;
}

#define COUNT(names) ((int)(sizeof names / sizeof *names))
#define PLACE(name, names) place_of(name, names, COUNT(names))

/* --- requests, as in `_protocol/jsonrpc.py` ----------------------------------------------------------------------- */

enum { NAME, META, OURS = 0, BAGGAGE, TRACEPARENT }; /* the first ones of either */
static const Slice PARAMS_NAMES[] = {
    LITERAL("name"), LITERAL("_meta"), LITERAL("clientInfo"), LITERAL("mode"), LITERAL("requestId"), LITERAL("cursor"),
    LITERAL("uri"), LITERAL("protocolVersion"), LITERAL("capabilities"), LITERAL("sessionId"), LITERAL("descendants")};
static const Slice META_NAMES[] = {
    LITERAL(SESSION), LITERAL("baggage"), LITERAL("traceparent"), LITERAL("tracestate"),
    LITERAL("io.modelcontextprotocol/protocolVersion"), LITERAL("io.modelcontextprotocol/clientCapabilities")};

typedef struct {
    Slice method, id, session, name; /* `at` is NULL where there is none; a method and an id are without quotes */
    int has_version, has_text_id, has_context; /* the last: for tracing */
    long long number; /* of an id that is one, without its sign */
} Request;

/* Read a `_meta`: how many members it has, or -1. */
static int read_meta(Text *t, Request *r) {
    Object meta;
    meta.count = -1;
    while (next_member(t, 2, &meta)) {
        const Byte *from = t->p;
        int place = PLACE(meta.name, META_NAMES);
        if (place < 0 || !skip_value(t, 3))
            return -1;
        r->session = place == OURS ? slice(from, t->p) : r->session;
        r->has_context |= place == BAGGAGE || place == TRACEPARENT;
    }
    return meta.is_whole ? meta.count : -1;
}

static int read_params(Text *t, Request *r) {
    Object params;
    params.count = -1;
    while (next_member(t, 1, &params)) {
        const Byte *from = t->p;
        int place = PLACE(params.name, PARAMS_NAMES);
        if (place < 0 || !(place == META ? read_meta(t, r) >= 0 : skip_value(t, 2)))
            return 0;
        r->name = place == NAME ? slice(from, t->p) : r->name;
    }
    return params.is_whole;
}

/* Read an id that has one spelling: a plain text that is not empty, or an integer that is not 0. */
static int read_id(Text *t, Request *r) {
    const Byte *from = t->p;
    if ((r->has_text_id = *from == '"'))
        return read_string(t, &r->id) == PLAIN && r->id.size;
    if (!skip_integer(t) || from[*from == '-'] == '0' || t->p - from > ID_BYTES)
        return 0;
    r->id = slice(from, t->p);
    for (from += *from == '-'; from < t->p; from++)
        r->number = 10 * r->number + (*from - '0');
    return 1;
}

static int read_member(Text *t, Slice name, Request *r) {
    if (IS(name, "jsonrpc"))
        return r->has_version = skip(t, (Slice)LITERAL("\"2.0\""));
    if (IS(name, "id"))
        return read_id(t, r);
    if (IS(name, "params"))
        return read_params(t, r);
    return IS(name, "method") && read_string(t, &r->method) == PLAIN;
}

static int read_request(Text *t, Request *r) {
    Object envelope;
    envelope.count = -1;
    skip_space(t);
    while (next_member(t, 0, &envelope))
        if (!read_member(t, envelope.name, r))
            return 0;
    skip_space(t);
    return envelope.is_whole && t->p == t->end && r->has_version && r->method.at;
}

/* --- answers, as in `_protocol/rewrite.py` ------------------------------------------------------------------------ */

static const Slice RESULT_NAMES[] = {
    LITERAL("_meta"), LITERAL("cacheScope"), LITERAL("ttlMs"), LITERAL("capabilities")};

/* What stands before an answer's id, result and value of `_meta`: without spaces, or with those of Python's `json`. */
static const Slice STYLES[2][3] = {
    {LITERAL("{\"jsonrpc\":\"2.0\",\"id\":"), LITERAL(",\"result\":{\""), LITERAL("\"_meta\":")},
    {LITERAL("{\"jsonrpc\": \"2.0\", \"id\": "), LITERAL(", \"result\": {\""), LITERAL("\"_meta\": ")}};

/* Read a result without cache hints, in which `_meta` has members but no session, and comes last or not at all: how
 * many bytes of the answer's end are after the place of a session, 3 or 2; 0 for any other. */
static int read_result(Text *t, Slice before_meta) {
    Object result;
    Request of = {.session = {NULL, 0}}; /* of which only the session is read */
    const Byte *meta_end = NULL;
    result.count = -1;
    while (next_member(t, 1, &result)) {
        int place = PLACE(result.name, RESULT_NAMES);
        if (place < 0 || IS(result.name, "cacheScope") || IS(result.name, "ttlMs"))
            return 0;
        if (IS(result.name, "_meta")) {
            t->p = (const Byte *)result.name.at - 1; /* once more from its quote, for the spaces */
            if (!skip(t, before_meta) || read_meta(t, &of) <= 0 || of.session.at)
                return 0;
            meta_end = t->p;
        } else if (!skip_value(t, 2))
            return 0;
    }
    return !result.is_whole ? 0 : !meta_end ? 2 : meta_end == t->p - 1 ? 3 : 0;
}

static int read_answer(Text *t, Slice id) {
    const Slice *style = skip(t, STYLES[0][0]) ? STYLES[0] : skip(t, STYLES[1][0]) ? STYLES[1] : NULL;
    int found;
    if (!style || !skip(t, id) || !skip(t, style[1]))
        return 0;
    t->p -= 2; /* back to the brace: the name after it has been seen to follow at once */
    found = read_result(t, style[2]);
    return *t->p == '}' && t->p + 1 == t->end ? found : 0;
}

/* --- what Python calls -------------------------------------------------------------------------------------------- */

static int slice_of(PyObject *given, Slice *s) {
    if (!PyBytes_CheckExact(given))
        return 0;
    s->at = PyBytes_AsString(given);
    s->size = (size_t)PyBytes_Size(given);
    return 1;
}

static int text_of(PyObject *given, long depth, Text *t) {
    Slice s = {"", 0};
    int is_bytes = slice_of(given, &s);
    *t = (Text){(const Byte *)s.at, (const Byte *)s.at + s.size, depth < DEPTH ? depth : DEPTH};
    return is_bytes;
}

static PyObject *none(void) { return Py_IncRef(Py_None), Py_None; }

/* A tuple of two or four new objects, each NULL where it could not be made. (`Py_BuildValue` takes twice as long.) */
static PyObject *pack(Py_ssize_t size, PyObject *a, PyObject *b, PyObject *c, PyObject *d) {
    PyObject *made = a && b && c && d ? PyTuple_Pack(size, a, b, c, d) : NULL;
    return Py_DecRef(a), Py_DecRef(b), Py_DecRef(c), Py_DecRef(d), made;
}

/* `read(body, nesting)`: of a request or notification the method, the id, the session's metadata (each None where it is
 * absent) and, if it has those and no trace context, the name in its `params`, which may be empty; or None for a body
 * that is not of the common form, or nested more deeply than that. */
static PyObject *reader_read(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Text t;
    Request r = {0};
    long nesting = count == 2 ? PyLong_AsLong(given[1]) : -1;
    if (nesting == -1)
        return PyErr_Occurred() ? NULL : none();
    if (!text_of(given[0], nesting, &t) || !read_request(&t, &r))
        return none();
    return pack(4, PyUnicode_FromStringAndSize(r.method.at, (Py_ssize_t)r.method.size),
        !r.id.at ? none()
            : r.has_text_id ? PyUnicode_FromStringAndSize(r.id.at, (Py_ssize_t)r.id.size)
            : PyLong_FromLongLong(*r.id.at == '-' ? -r.number : r.number),
        r.session.at ? PyBytes_FromStringAndSize(r.session.at, (Py_ssize_t)r.session.size) : none(),
        r.session.at && !r.has_context ? PyBytes_FromStringAndSize(r.name.at, (Py_ssize_t)r.name.size) : none());
}

static char *append(char *to, Slice s) { return (char *)memcpy(to, s.at, s.size) + s.size; }

/* `echo(answer, request_id, session)`: the answer with the session, or what it returns, among its metadata, or None for
 * what is not of the common form, or not the success for that id, as JSON. */
static PyObject *reader_echo(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    static const Slice NEW = LITERAL(",\"_meta\":{\"" SESSION "\":"), MORE = LITERAL(",\"" SESSION "\":");
    Slice id, before, member, named;
    PyObject *session, *written = NULL;
    Text t;
    int place;
    if (count != 3 || !text_of(given[0], DEPTH, &t) || !slice_of(given[1], &id))
        return none();
    before = slice(t.p, t.end);
    if (!(place = read_answer(&t, id)))
        return none();
    before.size -= (size_t)place;
    member = place == 2 ? NEW : MORE;
    session = PyBytes_CheckExact(given[2]) ? (Py_IncRef(given[2]), given[2]) : PyObject_CallNoArgs(given[2]);
    if (!session)
        return NULL;
    if (!slice_of(session, &named))
        PyErr_SetString(PyExc_TypeError, "a session's metadata is bytes");
    else
        written = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(before.size + member.size + named.size + 3));
    if (written)
        append(append(append(append(PyBytes_AsString(written), before), member), named), (Slice)LITERAL("}}}"));
    return Py_DecRef(session), written;
}

/* Read one of the ASGI headers in a list: it, or NULL, and its name. No code of Python runs while a list is read. */
static PyObject *read_header(PyObject *headers, Py_ssize_t at, Slice *name) {
    PyObject *one = PyList_GetItem(headers, at);
    return PyTuple_CheckExact(one) && PyTuple_Size(one) == 2 && slice_of(PyTuple_GetItem(one, 0), name) ? one : NULL;
}

/* `head(headers)`: where a request's `accept-encoding` stands, or -1, and its last `user-agent`, or None; or
 * None where a header may concern a session or the reading of the body, or there is one `accept-encoding` too many. */
static PyObject *reader_head(PyObject *module, PyObject *headers) {
    Py_ssize_t at, size = PyList_CheckExact(headers) ? PyList_Size(headers) : -1, coding = -1;
    PyObject *pair, *agent = Py_None;
    Slice name, value;
    for (at = 0; at < size; at++) {
        if (!(pair = read_header(headers, at, &name)) || IS(name, "mcp-session-id") || IS(name, "cookie")
            || IS(name, "content-encoding") || (IS(name, "accept-encoding") && coding >= 0)
            || (IS(name, "content-length") && !(slice_of(PyTuple_GetItem(pair, 1), &value) && value.size <= 6)))
            return none();
        coding = IS(name, "accept-encoding") ? at : coding;
        agent = IS(name, "user-agent") ? PyTuple_GetItem(pair, 1) : agent;
    }
    return size < 0 ? none() : (Py_IncRef(agent), pack(2, PyLong_FromSsize_t(coding), agent, none(), none()));
}

/* As in `_server/response.py`: what is true of one body alone, after its coding and its type. */
static const Slice BODY_NAMES[] = {
    LITERAL("content-encoding"), LITERAL("content-type"), LITERAL("content-length"), LITERAL("transfer-encoding"),
    LITERAL("etag"), LITERAL("content-digest"), LITERAL("repr-digest"), LITERAL("digest"), LITERAL("content-md5")};

/* `kept(headers)`: those of a response that stay true when its body, JSON as it is, is changed; or None for any other
 * body, and where a name is not in lower case. */
static PyObject *reader_kept(PyObject *module, PyObject *headers) {
    PyObject *kept = PyList_New(0), *pair;
    Py_ssize_t at = 0, size = PyList_CheckExact(headers) ? PyList_Size(headers) : 0;
    int is_json = 0;
    Slice name, type;
    for (; kept && at < size && (pair = read_header(headers, at, &name)); at++) {
        int place = PLACE(name, BODY_NAMES);
        is_json = place == 1 ? slice_of(PyTuple_GetItem(pair, 1), &type) && IS(type, "application/json") : is_json;
        if (place <= 0 || (place == 1 && !is_json))
            break;
        if ((place == 1 || place == COUNT(BODY_NAMES)) && PyList_Append(kept, pair) < 0)
            return Py_DecRef(kept), NULL;
    }
    return !kept || (is_json && at == size) ? kept : (Py_DecRef(kept), none());
}

/* `step(waiter)`: begins to await it; what it returned at once, or in a tuple its iterator and what that waits for. */
static PyObject *reader_step(PyObject *module, PyObject *waiter) {
    PyObject *found = NULL, *steps = PyType_GetSlot(Py_TYPE(waiter), Py_am_send) ? (Py_IncRef(waiter), waiter)
        : PyObject_CallMethod(waiter, "__await__", NULL);
    if (!steps || PyIter_Send(steps, Py_None, &found) != PYGEN_NEXT)
        return Py_DecRef(steps), found;
    return pack(2, steps, found, none(), none());
}

static PyMethodDef functions[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {"echo", (PyCFunction)(void (*)(void))reader_echo, METH_FASTCALL, NULL},
    {"head", reader_head, METH_O, NULL},
    {"kept", reader_kept, METH_O, NULL},
    {"step", reader_step, METH_O, NULL},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};
static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "mcp_sessions._protocol._native._reader", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void) { return PyModuleDef_Init(&definition); }
