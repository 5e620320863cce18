//! Measures how fast rules are compiled, looked up and evaluated on one core: `cargo bench -p tidewire-rules`. `--
//! evaluate` runs only the benchmarks with this in their name.
//!
//! The benchmark does not use criterion: criterion needs 16 more crates, and its statistics are made for changes of a
//! few percent. A round takes about one millisecond, which is less than a time slice. The best of 500 rounds is the
//! cost of the code. The median and the 95th percentile show the influence of other work on the machine.

#![allow(clippy::print_stdout, reason = "a benchmark prints")]

use std::hint::black_box;
use std::time::Instant;

use rules::{
    Column, Environment, Evaluator, EventKind, FromEntry, Map, Rule, RuleEvent, RuleIndex, RuleLimits, Template, Value,
};

const SQL: &str = r#"SELECT payload.temp AS t, topic FROM "t/#" WHERE payload.temp > 30"#;
const FOREACH: &str = r#"FOREACH payload.tags AS tag DO upper(tag) AS tag, concat(concat(clientid, '/'), tag) AS key, round(payload.temp) AS temp, nth(2, tokens(topic, '/')) AS device INCASE strlen(tag) > 3 FROM "t/#" WHERE payload.ok = true"#;
const PAYLOAD: &[u8] = br#"{"device":"sensor-000017","temp":31.5,"humidity":48.25,"pressure":1013.25,"battery":{"level":87,"voltage":3.71},"location":{"lat":52.520008,"lon":13.404954},"tags":["roof","north"],"ts":1708671600500,"ok":true}"#;

struct Publish {
    topic: &'static str,
    payload: &'static [u8],
}

impl RuleEvent for Publish {
    fn kind(&self) -> EventKind {
        EventKind::MessagePublish
    }

    fn column(&self, column: Column) -> Value {
        match column {
            Column::Topic => Value::from(self.topic),
            Column::ClientId => Value::from("sensor-000017"),
            Column::QoS => Value::Int(1),
            _ => Value::Undefined,
        }
    }

    fn payload(&self) -> &[u8] {
        self.payload
    }
}

struct World;

impl Environment for World {
    fn unix_nanoseconds(&self) -> i128 {
        0
    }

    fn random(&mut self) -> u64 {
        4
    }
}

const ROUNDS: usize = 500;
const CALLS: u32 = 1_000;

/// Prints the nanoseconds per call if the name contains the filter argument.
fn time(name: &str, mut call: impl FnMut()) {
    let is_wanted = |part: String| part.starts_with("--") || name.contains(&part);
    if !std::env::args().skip(1).all(is_wanted) {
        return;
    }
    let mut rounds: Vec<f64> = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        rounds.push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
    }
    rounds.sort_by(f64::total_cmp);
    let [best, median, late] = [0, ROUNDS / 2, ROUNDS * 95 / 100].map(|at| rounds[at]);
    println!("{name:58} {best:8.0} {median:8.0} {late:8.0} ns {:8.2} M/s", 1e3 / best);
}

fn evaluate(name: &str, sql: &str) {
    let rule = Rule::compile(sql, &RuleLimits::default()).expect("the rules of the benchmark are right");
    let event = Publish {
        topic: "t/sensor-000017",
        payload: PAYLOAD,
    };
    let (mut evaluator, mut out) = (Evaluator::new(), Vec::<Map>::new());
    time(name, || {
        out.clear();
        black_box(evaluator.message(&event, &mut World).run(&rule, &mut out)).expect("the payload is JSON");
    });
}

fn ten_rules() {
    let rules: Vec<Rule> = (0..10)
        .map(|_| Rule::compile(SQL, &RuleLimits::default()).expect("the rule is right"))
        .collect();
    let event = Publish {
        topic: "t/sensor-000017",
        payload: PAYLOAD,
    };
    let (mut evaluator, mut out) = (Evaluator::new(), Vec::<Map>::new());
    time("evaluate: the first, in ten rules over one message", || {
        let mut world = World;
        let mut message = evaluator.message(&event, &mut world);
        for rule in &rules {
            out.clear();
            black_box(message.run(rule, &mut out)).expect("the payload is JSON");
        }
    });
}

fn find(rules: u32) {
    let mut index = RuleIndex::new();
    for rule in 0..rules {
        index.insert(&FromEntry::Topic(format!("site/{rule}/+/state")), rule);
    }
    let mut found = Vec::new();
    time(&format!("find: a topic among {rules} filters"), || {
        index.publish(black_box("site/0/sensor-000017/state"), &mut found);
        assert_eq!(found, [0]);
    });
}

fn main() {
    println!(
        "payload of {} bytes; best, median, 95th percentile of {ROUNDS} rounds of {CALLS} calls",
        PAYLOAD.len()
    );
    time("compile: SELECT payload.temp AS t, topic … > 30", || {
        black_box(Rule::compile(black_box(SQL), &RuleLimits::default())).expect("the rule is right");
    });
    time("compile: FOREACH … DO … INCASE … WHERE, five functions", || {
        black_box(Rule::compile(black_box(FOREACH), &RuleLimits::default())).expect("the rule is right");
    });
    find(1);
    find(10_000);
    evaluate("evaluate: SELECT payload.temp AS t, topic … > 30", SQL);
    evaluate("evaluate: the same, refused by WHERE", &SQL.replace("30", "40"));
    evaluate(
        "evaluate: topic and clientid only, no payload",
        r#"SELECT topic, clientid FROM "t/#" WHERE qos = 1"#,
    );
    evaluate(
        "evaluate: whole payload as a map",
        r#"SELECT json_decode(payload) AS p FROM "t/#""#,
    );
    evaluate("evaluate: SELECT *", r#"SELECT * FROM "t/#""#);
    evaluate("evaluate: FOREACH of two elements, five functions", FOREACH);
    evaluate(
        "evaluate: regex_match(topic, constant)",
        r#"SELECT regex_match(topic, '^t/sensor-\d+$') AS m FROM "t/#""#,
    );
    ten_rules();
    let template = Template::compile("${t} of ${topic}").expect("the template is right");
    let output: Map = [("t".into(), Value::Float(31.5)), ("topic".into(), Value::from("t/a"))]
        .into_iter()
        .collect();
    let mut text = Vec::new();
    time("render: ${t} of ${topic}", || {
        text.clear();
        black_box(template.render(&output, rules::MissingText::Undefined, &mut text)).expect("it is short");
    });
}
