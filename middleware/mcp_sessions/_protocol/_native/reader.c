/* A strict reader of JSON-RPC requests, and of the answers that sessions are written into.
 *
 * It reads what nearly every client and server writes, in one pass, and builds only what each request needs. It decides
 * nothing and refuses nothing: for a text that is not of the common form it returns None, and the Python code reads it,
 * or refuses it with the right error. `python -m tests.tools.fuzz --target native` compares the two.
 *
 * What makes it safe:
 * - Only `bytes` are read, which CPython ends with a NUL beyond their size. No JSON text holds a NUL, so every loop
 *   ends there at the latest, and a byte is looked at only after the one before it was seen not to be NUL.
 * - No function calls itself, directly or through others: open arrays and objects are bits of an integer.
 * - Time is linear in the size of the text: a name is compared with fewer than MEMBERS others.
 * - Nothing is kept between two calls, so threads and interpreters share nothing. The limited API of 3.10 cannot
 *   declare that: interpreters with a lock of their own do not import this module, free-threaded ones do not build it.
 *
 * Sources: RFC 8259 (JSON), RFC 3629 section 4 (UTF-8), JSON-RPC 2.0 section 4.
 */
#define Py_LIMITED_API 0x030A0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MEMBERS 24   /* of an object whose names are read */
#define DEPTH 60     /* arrays and objects in each other; their kinds fit an integer of 64 bits */
#define ID_BYTES 18  /* of an integer with its sign, which fits a `long long` */
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

/* --- JSON --------------------------------------------------------------------------------------------------------- */

static Slice slice(const Byte *from, const Byte *to) {
    Slice s = {(const char *)from, (size_t)(to - from)};
    return s;
}

static void skip_space(Text *t) {
    while (*t->p == ' ' || *t->p == '\n' || *t->p == '\r' || *t->p == '\t')
        t->p++;
}

static int skip_byte(Text *t, Byte expected) {
    if (*t->p != expected)
        return 0;
    t->p++;
    return 1;
}

static int skip(Text *t, Slice expected) {
    if ((size_t)(t->end - t->p) < expected.size || memcmp(t->p, expected.at, expected.size))
        return 0;
    t->p += expected.size;
    return 1;
}

/* Whether one of eight bytes is a quote, a backslash, a control character or not ASCII: each term has the high bit of
 * some byte set if and only if there is such a byte, whatever the machine's order of bytes. */
static int is_special(const Byte *p) {
    const uint64_t ones = 0x0101010101010101u, highs = 0x8080808080808080u;
    uint64_t word, quote, backslash;
    memcpy(&word, p, sizeof word);
    quote = word ^ ones * '"';
    backslash = word ^ ones * '\\';
    word |= ((quote - ones) & ~quote) | ((backslash - ones) & ~backslash) | ((word - ones * ' ') & ~word);
    return (word & highs) != 0;
}

static int is_hex(Byte c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f'); }

/* The length of an escape, or 0. Surrogates are left to the Python code, which knows what to do with lone ones. */
static int escape(const Byte *p) {
    switch (p[1]) {
    case '"': case '\\': case '/': case 'b': case 'f': case 'n': case 'r': case 't':
        return 2;
    case 'u':
        if (!is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5]))
            return 0;
        return (p[2] | 0x20) == 'd' && p[3] >= '8' ? 0 : 6;
    default:
        return 0;
    }
}

static int is_tail(Byte c) { return (c & 0xC0) == 0x80; }

/* The length of the UTF-8 sequence that begins with a byte of 0x80 or more, or 0. */
static int sequence(const Byte *p) {
    Byte c = p[0];
    if (c >= 0xC2 && c <= 0xDF)
        return is_tail(p[1]) ? 2 : 0;
    if (c >= 0xE0 && c <= 0xEF) {
        if (!is_tail(p[1]) || !is_tail(p[2]))
            return 0;
        return (c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F) ? 0 : 3;
    }
    if (c < 0xF0 || c > 0xF4 || !is_tail(p[1]) || !is_tail(p[2]) || !is_tail(p[3]))
        return 0;
    return (c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F) ? 0 : 4;
}

typedef enum { WRONG, PLAIN, FOREIGN, ESCAPED } Spelling; /* of a string: ASCII, with other characters, with escapes */

/* Read a string; the slice is what stands between its quotes. */
static Spelling read_string(Text *t, Slice *s) {
    Spelling found = PLAIN;
    const Byte *p = t->p + 1;
    int size;
    if (*t->p != '"')
        return WRONG;
    for (;;) {
        while (t->end - p >= 8 && !is_special(p))
            p += 8;
        while (*p >= ' ' && *p < 0x80 && *p != '"' && *p != '\\')
            p++;
        if (*p == '"') {
            *s = slice(t->p + 1, p);
            t->p = p + 1;
            return found;
        }
        if (*p < ' ')
            return WRONG;
        do { /* as most alphabets have them, one after the other */
            size = *p == '\\' ? escape(p) : sequence(p);
            if (!size)
                return WRONG;
            if (found != ESCAPED)
                found = *p == '\\' ? ESCAPED : FOREIGN;
            p += size;
        } while (*p >= 0x80 || *p == '\\');
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

static int skip_name(Text *t) {
    Slice unused;
    skip_space(t);
    if (!read_string(t, &unused))
        return 0;
    skip_space(t);
    return skip_byte(t, ':');
}

/* Skip a value that lies in so many arrays and objects. */
static int skip_value(Text *t, int level) {
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
                if (objects & 1 && !skip_name(t))
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
        if (!skip_byte(t, ',') || (objects & 1 && !skip_name(t)))
            return 0;
    }
}

/* --- objects whose names are read --------------------------------------------------------------------------------- */

typedef struct {
    Slice names[MEMBERS]; /* so far */
    int count;
} Object;

static int open_object(Text *t, int level, Object *object) {
    object->count = 0;
    return level < t->depth && skip_byte(t, '{');
}

/* Go to the value of the next member: 1; 0 after the end; -1 where the object is not of the common form, in which each
 * name is plain and comes once. */
static int next_member(Text *t, Object *object, Slice *name) {
    int i;
    skip_space(t);
    if (skip_byte(t, '}'))
        return 0;
    if (object->count) {
        if (!skip_byte(t, ','))
            return -1;
        skip_space(t);
    }
    if (object->count == MEMBERS || read_string(t, name) != PLAIN)
        return -1;
    for (i = 0; i < object->count; i++)
        if (object->names[i].size == name->size && !memcmp(object->names[i].at, name->at, name->size))
            return -1;
    object->names[object->count++] = *name;
    skip_space(t);
    if (!skip_byte(t, ':'))
        return -1;
    skip_space(t);
    return 1;
}

/* Whether a name differs from one of the others in case alone; some parsers take it for that one. */
static int is_mixed(Slice name, const Slice *others, size_t count) {
    for (; count; count--, others++) {
        size_t i = 0;
        if (others->size != name.size || !memcmp(name.at, others->at, name.size))
            continue;
        while (i < name.size && (name.at[i] | 0x20) == (others->at[i] | 0x20))
            i++;
        if (i == name.size)
            return 1;
    }
    return 0;
}

#define IS_MIXED(name, others) is_mixed(name, others, sizeof others / sizeof *others)

/* --- requests ----------------------------------------------------------------------------------------------------- */

/* As in `_protocol/jsonrpc.py`. */
static const Slice PARAMS_NAMES[] = {
    LITERAL("name"), LITERAL("uri"), LITERAL("clientInfo"), LITERAL("_meta"), LITERAL("protocolVersion"),
    LITERAL("capabilities"), LITERAL("cursor"), LITERAL("sessionId"), LITERAL("mode"), LITERAL("descendants")};
static const Slice META_NAMES[] = {
    LITERAL(SESSION), LITERAL("io.modelcontextprotocol/protocolVersion"),
    LITERAL("io.modelcontextprotocol/clientCapabilities"), LITERAL("baggage")};

typedef struct {
    Slice method, id, session; /* `at` is NULL where there is none; a string is without its quotes */
    int has_version, has_text_id;
} Request;

static int read_meta(Text *t, Request *r) {
    Object meta;
    Slice name;
    int more;
    if (!open_object(t, 2, &meta))
        return 0;
    while ((more = next_member(t, &meta, &name)) > 0) {
        const Byte *from = t->p;
        if (IS_MIXED(name, META_NAMES) || !skip_value(t, 3))
            return 0;
        if (IS(name, SESSION))
            r->session = slice(from, t->p);
    }
    return !more;
}

static int read_params(Text *t, Request *r) {
    Object params;
    Slice name;
    int more;
    if (!open_object(t, 1, &params))
        return 0;
    while ((more = next_member(t, &params, &name)) > 0)
        if (IS_MIXED(name, PARAMS_NAMES) || !(IS(name, "_meta") ? read_meta(t, r) : skip_value(t, 2)))
            return 0;
    return !more;
}

/* Read an id that has one spelling: a text without escapes that is not empty, or an integer that is not 0. */
static int read_id(Text *t, Request *r) {
    const Byte *from = t->p;
    r->has_text_id = *from == '"';
    if (r->has_text_id) {
        Spelling found = read_string(t, &r->id);
        return (found == PLAIN || found == FOREIGN) && r->id.size;
    }
    if (!skip_integer(t) || from[*from == '-'] == '0' || t->p - from > ID_BYTES)
        return 0;
    r->id = slice(from, t->p);
    return 1;
}

static int read_member(Text *t, Slice name, Request *r) {
    Slice version;
    Spelling found;
    if (IS(name, "jsonrpc"))
        return r->has_version = read_string(t, &version) == PLAIN && IS(version, "2.0");
    if (IS(name, "id"))
        return read_id(t, r);
    if (IS(name, "params"))
        return read_params(t, r);
    found = IS(name, "method") ? read_string(t, &r->method) : WRONG;
    return found == PLAIN || found == FOREIGN;
}

static int read_request(Text *t, Request *r) {
    Object envelope;
    Slice name;
    int more;
    skip_space(t);
    if (!open_object(t, 0, &envelope))
        return 0;
    while ((more = next_member(t, &envelope, &name)) > 0)
        if (!read_member(t, name, r))
            return 0;
    skip_space(t);
    return !more && t->p == t->end && r->has_version && r->method.at;
}

/* --- answers ------------------------------------------------------------------------------------------------------ */

/* As in `_protocol/rewrite.py`. */
static const Slice RESULT_NAMES[] = {
    LITERAL("_meta"), LITERAL("cacheScope"), LITERAL("ttlMs"), LITERAL("capabilities")};

/* What stands before the id of an answer, before its result and before the value of `_meta`: without spaces, or with
 * those of Python's `json`. */
typedef struct {
    Slice before_id, before_result, before_meta;
} Style;
static const Style COMPACT = {
    LITERAL("{\"jsonrpc\":\"2.0\",\"id\":"), LITERAL(",\"result\":{\""), LITERAL("\"_meta\":")};
static const Style SPACED = {
    LITERAL("{\"jsonrpc\": \"2.0\", \"id\": "), LITERAL(", \"result\": {\""), LITERAL("\"_meta\": ")};

/* Read a `_meta` that has members, but no session. */
static int read_answer_meta(Text *t) {
    Object meta;
    Slice name;
    int more;
    if (!open_object(t, 2, &meta))
        return 0;
    while ((more = next_member(t, &meta, &name)) > 0)
        if (IS(name, SESSION) || !skip_value(t, 3))
            return 0;
    return !more && meta.count;
}

/* Read a result without cache hints, in which `_meta` comes last or not at all: 3 or 2; 0 for any other. */
static int read_result(Text *t, Slice before_meta) {
    Object result;
    Slice name;
    const Byte *meta_end = NULL;
    int more;
    if (!open_object(t, 1, &result))
        return 0;
    while ((more = next_member(t, &result, &name)) > 0) {
        if (IS_MIXED(name, RESULT_NAMES) || IS(name, "cacheScope") || IS(name, "ttlMs"))
            return 0;
        if (IS(name, "_meta")) {
            t->p = (const Byte *)name.at - 1; /* once more from its quote, for the spaces */
            if (!skip(t, before_meta) || !read_answer_meta(t))
                return 0;
            meta_end = t->p;
        } else if (!skip_value(t, 2))
            return 0;
    }
    if (more || !meta_end)
        return more ? 0 : 2;
    return meta_end == t->p - 1 ? 3 : 0;
}

static int read_answer(Text *t, Slice id) {
    const Style *style = skip(t, COMPACT.before_id) ? &COMPACT : skip(t, SPACED.before_id) ? &SPACED : NULL;
    int found;
    if (!style || !skip(t, id) || !skip(t, style->before_result))
        return 0;
    t->p -= 2; /* back to the brace: the name after it has been seen to follow at once */
    found = read_result(t, style->before_meta);
    return *t->p == '}' && t->p + 1 == t->end ? found : 0;
}

/* --- what Python calls -------------------------------------------------------------------------------------------- */

static int text_of(PyObject *given, long depth, Text *t) {
    if (!PyBytes_CheckExact(given))
        return 0;
    t->p = (const Byte *)PyBytes_AsString(given);
    t->end = t->p + PyBytes_Size(given);
    t->depth = depth < DEPTH ? depth : DEPTH;
    return 1;
}

static PyObject *none(void) {
    Py_INCREF(Py_None);
    return Py_None;
}

static PyObject *str_of(Slice s) {
    return PyUnicode_DecodeUTF8(s.at, (Py_ssize_t)s.size, NULL);
}

static PyObject *id_of(const Request *r) {
    long long number = 0;
    size_t i, is_negative;
    if (!r->id.at)
        return none();
    if (r->has_text_id)
        return str_of(r->id);
    is_negative = *r->id.at == '-';
    for (i = is_negative; i < r->id.size; i++)
        number = number * 10 + (r->id.at[i] - '0');
    return PyLong_FromLongLong(is_negative ? -number : number);
}

/* `read(body, nesting)`: the method, the id and the session's metadata of a request or notification, each None where it
 * is absent; or None for a body that is not of the common form, or nested more deeply than that. */
static PyObject *reader_read(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Text t;
    Request r;
    PyObject *method, *id = NULL, *session = NULL, *found = NULL;
    long nesting = count == 2 ? PyLong_AsLong(given[1]) : -1;
    (void)module;
    if (nesting == -1)
        return PyErr_Occurred() ? NULL : none();
    memset(&r, 0, sizeof r);
    if (!text_of(given[0], nesting, &t) || !read_request(&t, &r))
        return none();
    if ((method = str_of(r.method)) != NULL && (id = id_of(&r)) != NULL)
        session = r.session.at ? PyBytes_FromStringAndSize(r.session.at, (Py_ssize_t)r.session.size) : none();
    if (session)
        found = PyTuple_Pack(3, method, id, session);
    Py_XDECREF(method);
    Py_XDECREF(id);
    Py_XDECREF(session);
    return found;
}

/* `place(answer, request_id)`: before how many bytes of the answer's end its session goes, 2 or, within the `_meta`
 * that ends the result, 3; or None for what is not of the common form, or not the success for that id, as JSON. */
static PyObject *reader_place(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    Text t, id;
    int found;
    (void)module;
    if (count != 2 || !text_of(given[0], DEPTH, &t) || !text_of(given[1], DEPTH, &id))
        return none();
    found = read_answer(&t, slice(id.p, id.end));
    return found ? PyLong_FromLong(found) : none();
}

static PyMethodDef functions[] = {
    {"read", (PyCFunction)(void (*)(void))reader_read, METH_FASTCALL, NULL},
    {"place", (PyCFunction)(void (*)(void))reader_place, METH_FASTCALL, NULL},
    {NULL, NULL, 0, NULL}};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "mcp_sessions._protocol._native._reader", NULL, 0, functions, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__reader(void) {
    return PyModuleDef_Init(&definition);
}
