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
#include <stdlib.h>
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

typedef struct {
    const char *at;
    size_t size;
} Slice;

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
    if ((size_t)(t->end - t->p) < expected.size || memcmp(t->p, expected.at, expected.size))
        return 0;
    t->p += expected.size;
    return 1;
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

static int is_hex(Byte c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

/* The length of an escape, or 0. Surrogates are left to the Python code, which knows what to do with lone ones. */
static int escape(const Byte *p) {
    if (p[1] != 'u')
        return p[1] && strchr("\"\\/bfnrt", p[1]) ? 2 : 0;
    if (!is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5]))
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

/* Read a string; the slice is what stands between its quotes. */
static Spelling read_string(Text *t, Slice *s) {
    Spelling found = PLAIN;
    const Byte *p = t->p + 1;
    int size;
    if (*t->p != '"')
        return WRONG;
    for (;;) {
        for (size = BLOCK; size == BLOCK && t->end - p >= BLOCK; p += size)
            size = plain_bytes(p);
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
    }
}

static int skip_digits(Text *t) {
    const Byte *from = t->p;
    while (*t->p >= '0' && *t->p <= '9')
        t->p++;
    return t->p > from;
}

static int skip_integer(Text *t) {
    skip_byte(t, '-');
    return skip_byte(t, '0') || skip_digits(t);
}

static int skip_number(Text *t) {
    if (!skip_integer(t) || (skip_byte(t, '.') && !skip_digits(t)))
        return 0;
    if (!skip_byte(t, 'e') && !skip_byte(t, 'E'))
        return 1;
    if (!skip_byte(t, '+'))
        skip_byte(t, '-');
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
    Slice names[MEMBERS]; /* so far */
    int count;            /* of these, or -1 before its brace */
} Object;

/* Go to the value of the next member of an object at this level: 1; 0 after the end; -1 where the object is not of the
 * common form, in which each name is plain and comes once. */
static int next_member(Text *t, int level, Object *object, Slice *name) {
    int i;
    if (object->count < 0) {
        object->count = 0;
        if (level >= t->depth || !skip_byte(t, '{'))
            return -1;
    }
    skip_space(t);
    if (skip_byte(t, '}'))
        return 0;
    if ((object->count > 0 && !skip_byte(t, ',')) || object->count == MEMBERS || read_name(t, name) != PLAIN)
        return -1;
    for (i = 0; i < object->count; i++)
        if (is_same(object->names[i], *name))
            return -1;
    object->names[object->count++] = *name;
    skip_space(t);
    return 1;
}

/* Whether a name differs from one of the others in case alone; some parsers take it for that one. */
static int is_mixed(Slice name, const Slice *others, size_t count) {
    for (; count; count--, others++)
        if (others->size == name.size && memcmp(name.at, others->at, name.size)
            && !PyOS_mystrnicmp(name.at, others->at, (Py_ssize_t)name.size))
            return 1;
    return 0;
}

#define IS_MIXED(name, others) is_mixed(name, others, sizeof others / sizeof *others)

/* --- requests, as in `_protocol/jsonrpc.py` ----------------------------------------------------------------------- */

static const Slice PARAMS_NAMES[] = {
    LITERAL("name"), LITERAL("clientInfo"), LITERAL("_meta"), LITERAL("mode"), LITERAL("requestId"), LITERAL("cursor"),
    LITERAL("uri"), LITERAL("protocolVersion"), LITERAL("capabilities"), LITERAL("sessionId"), LITERAL("descendants")};
static const Slice META_NAMES[] = {
    LITERAL(SESSION), LITERAL("baggage"), LITERAL("traceparent"), LITERAL("tracestate"),
    LITERAL("io.modelcontextprotocol/protocolVersion"), LITERAL("io.modelcontextprotocol/clientCapabilities")};

typedef struct {
    Slice method, id, session; /* `at` is NULL where there is none; a string is without its quotes */
    int has_version, has_text_id;
} Request;

/* Read a `_meta`: how many members it has, or -1. */
static int read_meta(Text *t, Slice *session) {
    Object meta;
    Slice name;
    int more;
    meta.count = -1;
    while ((more = next_member(t, 2, &meta, &name)) > 0) {
        const Byte *from = t->p;
        if (IS_MIXED(name, META_NAMES) || !skip_value(t, 3))
            return -1;
        if (IS(name, SESSION))
            *session = slice(from, t->p);
    }
    return more ? -1 : meta.count;
}

static int read_params(Text *t, Request *r) {
    Object params;
    Slice name;
    int more;
    params.count = -1;
    while ((more = next_member(t, 1, &params, &name)) > 0)
        if (IS_MIXED(name, PARAMS_NAMES) || !(IS(name, "_meta") ? read_meta(t, &r->session) >= 0 : skip_value(t, 2)))
            return 0;
    return !more;
}

/* Read an id that has one spelling: a plain text that is not empty, or an integer that is not 0. */
static int read_id(Text *t, Request *r) {
    const Byte *from = t->p;
    if ((r->has_text_id = *from == '"'))
        return read_string(t, &r->id) == PLAIN && r->id.size;
    if (!skip_integer(t) || from[*from == '-'] == '0' || t->p - from > ID_BYTES)
        return 0;
    r->id = slice(from, t->p);
    return 1;
}

static int read_member(Text *t, Slice name, Request *r) {
    static const Slice VERSION = LITERAL("\"2.0\"");
    if (IS(name, "jsonrpc"))
        return r->has_version = skip(t, VERSION);
    if (IS(name, "id"))
        return read_id(t, r);
    if (IS(name, "params"))
        return read_params(t, r);
    return IS(name, "method") && read_string(t, &r->method) == PLAIN;
}

static int read_request(Text *t, Request *r) {
    Object envelope;
    Slice name;
    int more;
    skip_space(t);
    envelope.count = -1;
    while ((more = next_member(t, 0, &envelope, &name)) > 0)
        if (!read_member(t, name, r))
            return 0;
    skip_space(t);
    return !more && t->p == t->end && r->has_version && r->method.at;
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
    Slice name, session = {NULL, 0};
    const Byte *meta_end = NULL;
    int more;
    result.count = -1;
    while ((more = next_member(t, 1, &result, &name)) > 0) {
        if (IS_MIXED(name, RESULT_NAMES) || IS(name, "cacheScope") || IS(name, "ttlMs"))
            return 0;
        if (IS(name, "_meta")) {
            t->p = (const Byte *)name.at - 1; /* once more from its quote, for the spaces */
            if (!skip(t, before_meta) || read_meta(t, &session) <= 0 || session.at)
                return 0;
            meta_end = t->p;
        } else if (!skip_value(t, 2))
            return 0;
    }
    return more ? 0 : !meta_end ? 2 : meta_end == t->p - 1 ? 3 : 0;
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
    Slice s;
    if (!slice_of(given, &s))
        return 0;
    t->p = (const Byte *)s.at;
    t->end = t->p + s.size;
    t->depth = depth < DEPTH ? depth : DEPTH;
    return 1;
}

static PyObject *none(void) { return Py_IncRef(Py_None), Py_None; }

/* `read(body, nesting)`: the method, the id and the session's metadata of a request or notification, each None where it
 * is absent; or None for a body that is not of the common form, or nested more deeply than that. */
static PyObject *reader_read(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Text t;
    Request r;
    PyObject *id;
    long nesting = count == 2 ? PyLong_AsLong(given[1]) : -1;
    if (nesting == -1)
        return PyErr_Occurred() ? NULL : none();
    memset(&r, 0, sizeof r);
    if (!text_of(given[0], nesting, &t) || !read_request(&t, &r))
        return none();
    id = !r.id.at ? none()
        : r.has_text_id ? PyUnicode_FromStringAndSize(r.id.at, (Py_ssize_t)r.id.size)
        : PyLong_FromLongLong(strtoll(r.id.at, NULL, 10)); /* which ends where the digits do */
    return Py_BuildValue("s#Ny#", r.method.at, (Py_ssize_t)r.method.size, id, r.session.at, (Py_ssize_t)r.session.size);
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
    Py_DecRef(session);
    return written;
}

/* Read one of the ASGI headers in a list: its value, or NULL. No code of Python runs while a list is read. */
static PyObject *read_header(PyObject *headers, Py_ssize_t at, Slice *name) {
    PyObject *pair = PyList_GetItem(headers, at);
    PyObject *value = PyTuple_CheckExact(pair) && PyTuple_Size(pair) == 2 ? PyTuple_GetItem(pair, 1) : NULL;
    return value && PyBytes_CheckExact(value) && slice_of(PyTuple_GetItem(pair, 0), name) ? value : NULL;
}

/* `head(headers)`: where a request's `accept-encoding` stands, or -1, and its last `user-agent`, or None; or
 * None where a header may concern a session or the reading of the body, or there is one `accept-encoding` too many. */
static PyObject *reader_head(PyObject *module, PyObject *headers) {
    Py_ssize_t at, size = PyList_CheckExact(headers) ? PyList_Size(headers) : -1, coding = -1;
    PyObject *value, *agent = Py_None;
    Slice name;
    for (at = 0; at < size; at++) {
        if (!(value = read_header(headers, at, &name)) || IS(name, "mcp-session-id") || IS(name, "cookie")
            || IS(name, "content-encoding") || (IS(name, "content-length") && PyBytes_Size(value) > 6)
            || (IS(name, "accept-encoding") && coding >= 0))
            return none();
        coding = IS(name, "accept-encoding") ? at : coding;
        agent = IS(name, "user-agent") ? value : agent;
    }
    return size < 0 ? none() : Py_BuildValue("nO", coding, agent);
}

/* As in `_server/response.py`: what is true of one body alone, after its coding and its type. */
static const Slice BODY_NAMES[] = {
    LITERAL("content-encoding"), LITERAL("content-type"), LITERAL("content-length"), LITERAL("transfer-encoding"),
    LITERAL("etag"), LITERAL("content-digest"), LITERAL("repr-digest"), LITERAL("digest"), LITERAL("content-md5")};

/* `kept(headers)`: those of a response that stay true when its body, JSON as it is, is changed; or None for any other
 * body, and where a name is not in lower case. */
static PyObject *reader_kept(PyObject *module, PyObject *headers) {
    const size_t count = sizeof BODY_NAMES / sizeof *BODY_NAMES;
    PyObject *kept = PyList_New(0);
    Py_ssize_t at = 0, size = PyList_CheckExact(headers) ? PyList_Size(headers) : 0;
    int is_json = 0;
    PyObject *value;
    Slice name, type;
    for (; kept && at < size && (value = read_header(headers, at, &name)); at++) {
        size_t i = 0;
        while (i < count && !is_same(name, BODY_NAMES[i]))
            i++;
        is_json = i == 1 ? slice_of(value, &type) && IS(type, "application/json") : is_json;
        if (i == 0 || (i == 1 && !is_json) || (i == count && IS_MIXED(name, BODY_NAMES)))
            break;
        if ((i == 1 || i == count) && PyList_Append(kept, PyList_GetItem(headers, at)) < 0)
            return Py_DecRef(kept), NULL;
    }
    if (!kept || (is_json && at == size))
        return kept;
    Py_DecRef(kept);
    return none();
}

/* `step(waiter)`: begins to wait; what it returned if that was at once, or else, in a tuple, what it waits for. */
static PyObject *reader_step(PyObject *module, PyObject *waiter) {
    PyObject *found = NULL, *waits;
    if (PyIter_Send(waiter, Py_None, &found) != PYGEN_NEXT)
        return found;
    waits = PyTuple_Pack(1, found);
    Py_DecRef(found);
    return waits;
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
