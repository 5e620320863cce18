//! Runs every function on large messages. Each must end within the time limit and charge steps for its work.
//!
//! The table of worst cases must contain every function in `rules::functions()`. `src/cost.rs` of the crate `jq` has
//! the same test for the functions of jq.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests and their helpers")]

use std::time::Duration;

use rules::{
    Environment, EvalError, EvalOutcome, Evaluator, Map, Rule, RuleLimits, SampleEvent, TimeLimit, ValueStore,
    functions,
};

use crate::support::{World, publish};

/// The default of `mqtt.max_packet_size`.
const PACKET_BYTES: usize = 1 << 20;

/// The default of `integration.rule_time_max`.
const TIME_MAX: Duration = Duration::from_millis(20);

/// Maximum time between two readings of the clock. Test builds are several times slower than release builds.
const SLACK: Duration = Duration::from_millis(60);

/// Processor time of this thread, so that other work on the machine does not count.
fn clock() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// An environment with a clock.
#[derive(Default)]
struct Timed(World);

impl Environment for Timed {
    fn unix_nanoseconds(&self) -> i128 {
        self.0.unix_nanoseconds()
    }

    fn random(&mut self) -> u64 {
        self.0.random()
    }

    fn time_limit(&self) -> Option<TimeLimit> {
        Some(TimeLimit { max: TIME_MAX, clock })
    }

    fn store(&mut self) -> Option<&mut dyn ValueStore> {
        self.0.store()
    }
}

struct Run {
    result: Result<EvalOutcome, EvalError>,
    steps: u64,
    taken: Duration,
}

fn run(rule: &Rule, event: &SampleEvent, world: &mut dyn Environment) -> Run {
    let mut evaluator = Evaluator::new();
    let mut out: Vec<Map> = Vec::new();
    let start = clock();
    let mut message = evaluator.message(event, world);
    let result = message.run(rule, &mut out);
    let steps = message.used().steps;
    out.clear();
    Run {
        result,
        steps,
        taken: clock() - start,
    }
}

/// The clock is not read while a payload is parsed. On a busy machine, this takes several times longer than otherwise.
fn parsing_time() -> Duration {
    let rule = rule("is_null(payload.l)", &RuleLimits::default());
    let event = publish("t", &Payload::List("[1.5]").bytes(PACKET_BYTES));
    shortest(Duration::ZERO, || run(&rule, &event, &mut World::default())).taken
}

/// Other work on the machine makes runs longer, so the shortest of several runs counts.
fn shortest(until: Duration, mut run: impl FnMut() -> Run) -> Run {
    let mut best = run();
    for _ in 0..5 {
        if best.taken <= until {
            break;
        }
        let again = run();
        if again.taken < best.taken {
            best = again;
        }
    }
    best
}

/// Payloads of `bytes` bytes.
#[derive(Clone, Copy, Debug)]
enum Payload {
    /// The same byte, repeated.
    Of(u8),
    /// The same text, repeated.
    Repeated(&'static str),
    /// `{"l": [element, element, …], "x": 1}`
    List(&'static str),
    /// `{"m": {"k0000000": value, …}}`, with keys in random order.
    Map(&'static str),
    /// `{"s": "text text text …"}`
    Text(&'static str),
    /// The result of an expression on spaces: input for decompression.
    Made(&'static str),
    Sparkplug,
}

impl Payload {
    fn bytes(self, bytes: usize) -> Vec<u8> {
        let repeated = |text: &str, around: usize| text.repeat(bytes.saturating_sub(around) / text.len());
        match self {
            Payload::Of(byte) => vec![byte; bytes],
            Payload::Repeated(text) => repeated(text, 0).into_bytes(),
            Payload::List(element) => {
                let all = repeated(&format!("{element},"), 30);
                format!("{{\"l\":[{}],\"x\":1}}", all.trim_end_matches(',')).into_bytes()
            }
            Payload::Map(value) => {
                let mut all = String::from("{\"m\":{");
                let mut number = 1_u32;
                while all.len() + value.len() + 30 < bytes {
                    number = number.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    all += &format!("\"k{number:08x}\":{value},");
                }
                format!("{}}},\"x\":1}}", all.trim_end_matches(',')).into_bytes()
            }
            Payload::Text(text) => format!("{{\"s\":\"{}\"}}", repeated(text, 10)).into_bytes(),
            Payload::Made(expression) => {
                let sql = format!("SELECT {expression} AS made FROM \"t\"");
                let limits = RuleLimits {
                    result_bytes_max: 1 << 30,
                    steps_max: u64::MAX,
                    ..RuleLimits::default()
                };
                let rule = Rule::compile(&sql, &limits).unwrap();
                let mut out = Vec::new();
                let event = publish("t", &vec![b' '; bytes]);
                let mut world = World::default();
                Evaluator::new()
                    .message(&event, &mut world)
                    .run(&rule, &mut out)
                    .unwrap();
                out[0].get(b"made").unwrap().as_bytes().unwrap().to_vec()
            }
            // Metrics with a name and an alias.
            Payload::Sparkplug => b"\x12\x06\x0a\x02ab\x10\x05".repeat(bytes / 8),
        }
    }
}

use Payload::{List, Made, Of, Repeated, Sparkplug, Text};

/// Functions whose cost does not depend on the message.
const CONSTANT: &[(&str, &str)] = &[
    ("abs", "abs(-1)"),
    ("acos", "acos(0.5)"),
    ("acosh", "acosh(1)"),
    ("asin", "asin(0.5)"),
    ("asinh", "asinh(0.5)"),
    ("atan", "atan(0.5)"),
    ("atanh", "atanh(0.5)"),
    ("bitand", "bitand(1, 3)"),
    ("bitnot", "bitnot(1)"),
    ("bitor", "bitor(1, 3)"),
    ("bitsl", "bitsl(1, 100)"),
    ("bitsr", "bitsr(1, 100)"),
    ("bitxor", "bitxor(1, 3)"),
    ("ceil", "ceil(0.5)"),
    ("clientid", "clientid()"),
    ("clientip", "clientip()"),
    ("cos", "cos(0.5)"),
    ("cosh", "cosh(0.5)"),
    ("div", "div(7, 2)"),
    ("exp", "exp(0.5)"),
    ("floor", "floor(0.5)"),
    ("fmod", "fmod(1e300, 1e-300)"),
    ("flags", "flags()"),
    ("getenv", "getenv('A')"),
    ("log", "log(2)"),
    ("log10", "log10(2)"),
    ("log2", "log2(3)"),
    ("map_new", "map_new()"),
    ("mod", "mod(7, 2)"),
    ("msgid", "msgid()"),
    ("now_rfc3339", "now_rfc3339()"),
    ("now_timestamp", "now_timestamp()"),
    ("null", "null()"),
    ("peerhost", "peerhost()"),
    ("power", "power(1.0000001, 1e9)"),
    ("qos", "qos()"),
    ("random", "random()"),
    ("round", "round(0.5)"),
    ("sin", "sin(1e22)"),
    ("sinh", "sinh(0.5)"),
    ("sqrt", "sqrt(2)"),
    ("tan", "tan(1e22)"),
    ("tanh", "tanh(0.5)"),
    ("topic", "topic(1)"),
    ("unix_ts_to_rfc3339", "unix_ts_to_rfc3339(1708671600)"),
    ("username", "username()"),
    ("uuid_v4", "uuid_v4()"),
    ("uuid_v4_no_hyphen", "uuid_v4_no_hyphen()"),
    ("float2str", "float2str(1e-300, 253)"),
];

/// Functions, with messages that cause much work.
const WORST: &[(&str, Payload, &str)] = &[
    ("ascii", Of(b'a'), "ascii(payload)"),
    ("base64_decode", Of(b'A'), "base64_decode(payload)"),
    ("base64_decode", Of(b' '), "base64_decode(payload)"),
    ("base64_encode", Of(b'A'), "base64_encode(payload)"),
    ("bin2hexstr", Of(b'A'), "bin2hexstr(payload)"),
    ("bitsize", Of(b'A'), "bitsize(payload)"),
    ("bool", Of(b'1'), "bool(payload)"),
    ("bytesize", Of(b'A'), "bytesize(payload)"),
    ("coalesce", List("null"), "coalesce(payload.l)"),
    ("coalesce_ne", List("\"\""), "coalesce_ne(payload.l)"),
    ("concat", List("1.5"), "concat(payload.l)"),
    ("concat", Of(b'a'), "concat(payload, payload)"),
    ("contains", List("10"), "contains(2, payload.l)"),
    (
        "contains",
        List("[1,1,1,1,1,1,1]"),
        "contains([1,1,1,1,1,1,2], payload.l)",
    ),
    (
        "contains_topic",
        List("{\"topic\":\"a\"}"),
        "contains_topic(payload.l, 'b')",
    ),
    (
        "contains_topic_match",
        List("{\"topic\":\"a/a/a/a/a/a/a/a\"}"),
        "contains_topic_match(payload.l, '+/+/+/+/+/+/+/b')",
    ),
    (
        "date_to_unix_ts",
        Repeated("%Y"),
        "date_to_unix_ts('second', payload, payload)",
    ),
    (
        "date_to_unix_ts",
        Of(b'1'),
        "date_to_unix_ts('second', payload, payload)",
    ),
    ("eq", Of(b'a'), "eq(payload, concat(payload, 'a'))"),
    ("eq", List("10"), "eq(payload.l, payload.l)"),
    ("find", Of(b'a'), "find(payload, 'aaaaaaaaaaaaaaaaaaaaaaaab')"),
    (
        "find",
        Of(b'a'),
        "find(payload, concat(substr(payload, 0, 400000), 'b'), 'trailing')",
    ),
    ("first", List("10"), "first(payload.l)"),
    ("flag", Repeated("a."), "flag(payload)"),
    ("float", Of(b'1'), "float(payload)"),
    ("format_date", Repeated("%N"), "format_date('second', 0, payload, 1)"),
    ("format_date", Of(b'a'), "format_date('second', 0, payload, 1)"),
    ("gunzip", Made("gzip(pad('', 16000000))"), "gunzip(payload)"),
    ("gzip", Repeated("abcabdabeabfacbacd"), "gzip(payload)"),
    ("gzip", Made("gzip(pad('', 200000000))"), "gzip(payload)"),
    ("hash", Of(b'a'), "hash('md5', payload)"),
    ("hash", Of(b'a'), "hash('sha512', payload)"),
    ("hexstr2bin", Of(b'A'), "hexstr2bin(payload)"),
    ("int", Of(b'0'), "int(payload)"),
    ("is_array", Of(b'a'), "is_array(payload)"),
    ("is_bool", Of(b'a'), "is_bool(payload)"),
    ("is_empty", List("10"), "is_empty(payload)"),
    ("is_float", Of(b'a'), "is_float(payload)"),
    ("is_int", Of(b'a'), "is_int(payload)"),
    ("is_map", Of(b'a'), "is_map(payload)"),
    ("is_not_null", Of(b'a'), "is_not_null(payload)"),
    ("is_not_null_var", Of(b'a'), "is_not_null_var(payload)"),
    ("is_null", Of(b'a'), "is_null(payload)"),
    ("is_null_var", Of(b'a'), "is_null_var(payload)"),
    ("is_num", Of(b'a'), "is_num(payload)"),
    ("is_str", Of(b'a'), "is_str(payload)"),
    (
        "join_to_sql_values_string",
        List("\"''''\""),
        "join_to_sql_values_string(payload.l)",
    ),
    (
        "join_to_sql_values_string",
        List("[1.5]"),
        "join_to_sql_values_string(payload.l)",
    ),
    ("join_to_string", List("1.5"), "join_to_string(payload.l)"),
    ("join_to_string", List("10"), "join_to_string(payload, payload.l)"),
    ("jq", List("1.5"), "jq('.l | sort', payload)"),
    ("jq", Text("<"), "jq('.s | gsub(\"<[^>]*>|<\"; \"\")', payload)"),
    ("jq", Of(b'.'), "jq(payload, '1')"),
    ("json_decode", List("10"), "json_decode(payload)"),
    ("json_decode", List("[]"), "json_decode(payload)"),
    ("json_decode", Payload::Map("1"), "json_decode(payload)"),
    ("json_decode", Text("\\u0001"), "json_decode(payload)"),
    ("json_encode", List("1.5"), "json_encode(payload.l)"),
    ("json_encode", Of(1), "json_encode(payload)"),
    ("json_encode", Of(255), "json_encode(payload)"),
    ("kv_store_del", Of(b'a'), "kv_store_del(payload)"),
    ("kv_store_get", Of(b'a'), "kv_store_get(payload)"),
    ("kv_store_put", List("10"), "kv_store_put('a', payload.l)"),
    ("last", List("10"), "last(payload.l)"),
    ("length", List("10"), "length(payload.l)"),
    ("lower", Repeated("\u{130}"), "lower(payload)"),
    ("lower", Of(b'A'), "lower(payload)"),
    ("ltrim", Of(b' '), "ltrim(payload)"),
    ("map", Payload::Map("1"), "map(payload)"),
    ("map_get", Repeated("a."), "map_get(payload, '{\"a\":1}')"),
    ("map_get", Payload::Map("1"), "map_get('m.a', payload)"),
    ("map_keys", Payload::Map("1"), "map_keys(payload.m)"),
    ("map_put", Payload::Map("1"), "map_put('m.a', 1, payload)"),
    ("map_put", Repeated("a."), "map_put(payload, 1, '{}')"),
    ("map_size", Payload::Map("1"), "map_size(payload)"),
    ("map_to_entries", Payload::Map("1"), "map_to_entries(payload.m)"),
    (
        "map_to_redis_hset_args",
        Payload::Map("1.5"),
        "map_to_redis_hset_args(payload.m)",
    ),
    ("map_values", Payload::Map("1"), "map_values(payload.m)"),
    ("md5", Of(b'a'), "md5(payload)"),
    ("mget", Payload::Map("1"), "mget('m', payload)"),
    ("mget", List("\"l\""), "mget(payload.l, payload)"),
    ("mput", Payload::Map("1"), "mput('m', 1, payload)"),
    ("nth", List("10"), "nth(1, payload.l)"),
    ("pad", Of(b'a'), "pad(payload, 4000000, 'both', 'ab')"),
    ("payload", Payload::Map("1"), "payload('m.a')"),
    ("payload", Of(b'a'), "payload()"),
    ("proc_dict_del", Of(b'a'), "proc_dict_del(payload)"),
    ("proc_dict_get", Of(b'a'), "proc_dict_get(payload)"),
    ("proc_dict_put", List("10"), "proc_dict_put('a', payload.l)"),
    ("regex_extract", Of(b'a'), "regex_extract(payload, '(a)*(a|b)*$')"),
    (
        "regex_extract",
        Repeated("10"),
        "regex_extract(payload, concat('([01]*)(1)', '([01]{1000})$'))",
    ),
    (
        "regex_match",
        Of(b'a'),
        "regex_match(payload, concat('(a?){200}a{200}', 'b'))",
    ),
    (
        "regex_match",
        Repeated("10"),
        "regex_match(payload, '[01]*1[01]{1000}$x')",
    ),
    ("regex_match", Of(b'('), "regex_match('a', payload)"),
    ("regex_match", Repeated("[a-z]{99}"), "regex_match('a', payload)"),
    (
        "regex_match",
        Of(b'a'),
        "regex_match('a', concat('(((a{100}){100}){100})', ''))",
    ),
    ("regex_replace", Of(b'<'), "regex_replace(payload, '<[^>]*>|<', '')"),
    (
        "regex_replace",
        Of(b'1'),
        "regex_replace(payload, '\\d+(\\.\\d+)?( kWh| MWh)|\\d', '')",
    ),
    ("regex_replace", Of(b'a'), "regex_replace(payload, 'a.*?b|a', '')"),
    ("regex_replace", Of(b'a'), "regex_replace(payload, '(a)', '\\1\\1')"),
    ("regex_replace", Of(b'&'), "regex_replace(payload, '', payload)"),
    ("replace", Of(b'a'), "replace(payload, 'a', 'bb')"),
    ("replace", Of(b'a'), "replace(payload, substr(payload, 0, 5000), 'b')"),
    ("reverse", Repeated("\u{df}"), "reverse(payload)"),
    ("reverse", Of(b'a'), "reverse(payload)"),
    ("rfc3339_to_unix_ts", Of(b'1'), "rfc3339_to_unix_ts(payload)"),
    ("rm_prefix", Of(b'a'), "rm_prefix(payload, payload)"),
    ("rtrim", Of(b'a'), "rtrim(payload, 'cba')"),
    ("rtrim", Of(b'a'), "rtrim(payload, payload)"),
    ("sha", Of(b'a'), "sha(payload)"),
    ("sha256", Of(b'a'), "sha256(payload)"),
    ("sparkplug_decode", Sparkplug, "sparkplug_decode(payload)"),
    ("sparkplug_decode", Repeated("\u{18}\u{1}"), "sparkplug_decode(payload)"),
    (
        "sparkplug_encode",
        List("10"),
        "sparkplug_encode(map_put('metrics', payload.l, '{}'))",
    ),
    (
        "sparkplug_encode",
        List("{\"name\":\"a\",\"alias\":1}"),
        "sparkplug_encode(mput('metrics', payload.l, '{}'))",
    ),
    ("split", Of(b'a'), "split(payload, 'a', 'notrim')"),
    ("split", Of(b'a'), "split(payload, 'aaaaaaaaaaaaaaaaaaaaaab')"),
    ("sprintf", Of(b'~'), "sprintf(payload)"),
    ("sprintf", Repeated("~~"), "sprintf(payload)"),
    (
        "sprintf_s",
        List("1.5"),
        "sprintf_s(pad('', 1000000, 'leading', '~.253f'), payload.l)",
    ),
    (
        "sprintf_s",
        List("-1"),
        "sprintf_s(pad('', 1000000, 'leading', '~.2b'), payload.l)",
    ),
    (
        "sprintf_s",
        List("10"),
        "sprintf_s(pad('', 1000000, 'leading', '~9999s'), payload.l)",
    ),
    ("sqlserver_bin2hexstr", Of(b'a'), "sqlserver_bin2hexstr(payload)"),
    ("str", List("1.5"), "str(payload.l)"),
    ("str_utf16_le", Of(b'a'), "str_utf16_le(payload)"),
    ("str_utf8", List("1.5"), "str_utf8(payload.l)"),
    ("strlen", Of(b'a'), "strlen(payload)"),
    ("subbits", Of(b'a'), "subbits(payload, 2, 8000000, 'bits')"),
    ("subbits", Of(b'a'), "subbits(payload, 2, 8000000, 'float')"),
    ("sublist", List("10"), "sublist(1000000, payload.l)"),
    ("substr", Of(b'a'), "substr(payload, 1)"),
    (
        "timezone_to_offset_seconds",
        Of(b'+'),
        "timezone_to_offset_seconds(payload)",
    ),
    ("timezone_to_second", Of(b'+'), "timezone_to_second(payload)"),
    ("tokens", Of(b'a'), "tokens(payload, 'b')"),
    ("tokens", Repeated("ab"), "tokens(payload, 'b')"),
    ("tokens", Of(b'a'), "tokens(payload, pad('', 100000, 'leading', 'b'))"),
    ("topic", Of(b'a'), "topic()"),
    ("trim", Of(b' '), "trim(payload)"),
    ("unescape", Repeated("\\n"), "unescape(payload)"),
    ("unzip", Made("zip(pad('', 16000000))"), "unzip(payload)"),
    ("upper", Repeated("\u{df}"), "upper(payload)"),
    ("zip", Repeated("abcabdabeabfacbacd"), "zip(payload)"),
    ("zip_compress", Of(b'a'), "zip_compress(payload)"),
    (
        "zip_uncompress",
        Made("zip_compress(pad('', 16000000))"),
        "zip_uncompress(payload)",
    ),
    // Operators and paths.
    ("", Of(b'a'), "payload = concat(payload, '')"),
    ("", Of(b'1'), "payload = 1"),
    ("", Of(b'a'), "payload =~ payload"),
    ("", Of(b'a'), "payload + payload"),
    ("", List("1.5"), "payload.l + ''"),
    ("", List("10"), "payload.l IN (payload.l, payload.l)"),
    ("", List("10"), "payload.l[1..400000]"),
    ("", Payload::Map("1"), "payload.m.a"),
    ("", Text("{"), "payload.s.a"),
    ("", List("10"), "payload.l[-1]"),
];

#[test]
fn every_function_has_a_worst_case() {
    let has_case = |name: &str| WORST.iter().any(|case| case.0 == name) || CONSTANT.iter().any(|case| case.0 == name);
    let missing: Vec<&str> = functions()
        .map(|function| function.name)
        .filter(|name| !has_case(name))
        .collect();
    assert!(missing.is_empty(), "add a worst case for {missing:?}");
}

fn cases() -> impl Iterator<Item = (&'static str, Payload, &'static str)> {
    let constant = CONSTANT.iter().map(|(name, expression)| (*name, Of(b'a'), *expression));
    WORST.iter().copied().chain(constant)
}

fn rule(expression: &str, limits: &RuleLimits) -> Rule {
    let sql = format!("SELECT {expression} AS result FROM \"t\"");
    Rule::compile(&sql, limits).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn shown(payload: Payload, expression: &str, run: &Run) -> String {
    let result = match &run.result {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.message.chars().take(50).collect(),
    };
    let ratio = run.taken.as_nanos() as f64 / run.steps.max(1) as f64;
    format!(
        "{:8.2?} {:8} steps {ratio:6.1} ns  {expression} of {payload:?}: {result}",
        run.taken, run.steps
    )
}

#[test]
fn every_function_ends_in_time() {
    let mut failures = Vec::new();
    for (_, payload, expression) in cases() {
        let rule = rule(expression, &RuleLimits::default());
        let event = publish("t", &payload.bytes(PACKET_BYTES));
        let run = shortest(TIME_MAX + SLACK, || run(&rule, &event, &mut Timed::default()));
        println!("{}", shown(payload, expression, &run));
        if run.taken > TIME_MAX + SLACK && run.taken > TIME_MAX + 3 * parsing_time() {
            failures.push(shown(payload, expression, &run));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Runs without a time limit. The charged steps must be proportional to the time.
#[test]
fn every_function_charges_for_its_work() {
    const STEP_MAX: Duration = Duration::from_nanos(250);
    /// Constant cost of a call and of reading the payload.
    const CONSTANT_MAX: Duration = Duration::from_millis(2);
    let limits = RuleLimits {
        steps_max: 4_000_000,
        result_bytes_max: 256 << 20,
        ..RuleLimits::default()
    };
    let mut failures = Vec::new();
    for (_, payload, expression) in cases() {
        let rule = rule(expression, &limits);
        let event = publish("t", &payload.bytes(PACKET_BYTES / 2));
        let allowed = |run: &Run| STEP_MAX * run.steps as u32 + CONSTANT_MAX;
        let mut best = run(&rule, &event, &mut World::default());
        for _ in 0..5 {
            if best.taken > allowed(&best) {
                best = run(&rule, &event, &mut World::default());
            }
        }
        if best.taken > allowed(&best) {
            failures.push(shown(payload, expression, &best));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// The steps are the same in every run, so no clock is needed: twice the bytes must need nearly twice the steps.
#[test]
fn texts_are_charged_by_their_bytes() {
    let limits = RuleLimits {
        steps_max: 4_000_000,
        ..RuleLimits::default()
    };
    for (name, payload, expression) in WORST.iter().filter(|case| case.2.contains("payload")) {
        let steps = |bytes: usize| {
            let run = run(
                &rule(expression, &limits),
                &publish("t", &payload.bytes(bytes)),
                &mut World::default(),
            );
            let is_limit = run.result.is_err_and(|error| error.is_limit);
            (run.steps, is_limit)
        };
        // Large enough to show the difference, and small enough for quadratic cases.
        let ((small, _), (large, is_limit)) = (steps(4 << 10), steps(8 << 10));
        if is_limit {
            continue;
        }
        let added = large.saturating_sub(small);
        let is_packed = matches!(payload, Made(_));
        assert!(
            is_packed || added >= (4 << 10) / 64,
            "{name} {expression}: {small} and {large} steps"
        );
    }
}

#[test]
fn foreach_ends_in_time() {
    let many = |element: &str| {
        List2 {
            element: element.to_owned(),
        }
        .payload()
    };
    let keys: String = (0..20_000).map(|number| format!("\"k{number}\":{number},")).collect();
    let wide = |list: &str| format!("{{{keys}\"l\":[{list}],\"site\":\"x\"}}");
    let elements = "1,".repeat(9_000);
    let maps = "{\"v\":1,\"i\":\"k1\"},".repeat(9_000);
    let cases = [
        ("DO payload.site AS s", wide(elements.trim_end_matches(','))),
        (
            "DO payload.site AS s, payload.k1 AS k, payload.k2 AS m",
            wide(elements.trim_end_matches(',')),
        ),
        ("DO payload.nothing AS s", wide(elements.trim_end_matches(','))),
        (
            "DO e.v AS v INCASE payload.site = 'y'",
            wide(maps.trim_end_matches(',')),
        ),
        ("DO payload[e.i] AS v", wide(maps.trim_end_matches(','))),
        ("DO payload.l[-1] AS v", wide(elements.trim_end_matches(','))),
        ("DO *", wide(elements.trim_end_matches(','))),
        ("DO payload AS p", wide(elements.trim_end_matches(','))),
        ("", wide(elements.trim_end_matches(','))),
        ("DO json_decode(payload) AS p", wide(elements.trim_end_matches(','))),
        ("DO e AS e", many("1")),
        ("DO e.a.b.c AS e", many("{}")),
        ("DO payload.text.a AS e", wide(elements.trim_end_matches(','))),
    ];
    for (each, payload) in cases {
        let sql = format!("FOREACH payload.l AS e {each} FROM \"t\"");
        let rule = Rule::compile(&sql, &RuleLimits::default()).unwrap_or_else(|error| panic!("{sql}: {error}"));
        let event = publish("t", payload.as_bytes());
        let run = shortest(TIME_MAX + SLACK, || run(&rule, &event, &mut Timed::default()));
        println!(
            "{:?} {} steps {each}: {:?}",
            run.taken,
            run.steps,
            run.result.as_ref().err()
        );
        assert!(run.taken <= TIME_MAX + SLACK, "{each} took {:?}", run.taken);
    }
}

struct List2 {
    element: String,
}

impl List2 {
    fn payload(&self) -> String {
        let count = PACKET_BYTES / (self.element.len() + 1) - 20;
        let list = format!("{},", self.element).repeat(count);
        format!("{{\"l\":[{}]}}", list.trim_end_matches(','))
    }
}

#[test]
fn paths_outside_of_the_element_are_looked_up_once() {
    let steps = |keys: usize, elements: usize| {
        let keys: String = (0..keys).map(|number| format!("\"k{number}\":{number},")).collect();
        let list = "1,".repeat(elements);
        let payload = format!("{{{keys}\"l\":[{}],\"site\":\"x\"}}", list.trim_end_matches(','));
        let sql = "FOREACH payload.l AS e DO payload.site AS s, e INCASE payload.site = 'x' FROM \"t\"";
        let rule = Rule::compile(sql, &RuleLimits::default()).unwrap();
        let run = run(&rule, &publish("t", payload.as_bytes()), &mut World::default());
        assert_eq!(run.result, Ok(EvalOutcome::Passed(elements)));
        run.steps
    };
    let by_keys = steps(4_000, 1_000) - steps(2_000, 1_000);
    assert!(
        (500..10_000).contains(&by_keys),
        "{by_keys} steps for 2,000 keys and 1,000 elements"
    );
    let by_elements = steps(2_000, 2_000) - steps(2_000, 1_000);
    assert!(
        (2_000..100_000).contains(&by_elements),
        "{by_elements} steps for 1,000 elements"
    );
}
