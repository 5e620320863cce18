//! Statements from EMQX's documentation with their results, from `tests/emqx/statements.txt`.
//!
//! Also writes `docs/internals/rules-conformance.md` from that file and `functions.txt`: `UPDATE=1 cargo test -p
//! tidewire-rules --test it emqx_statements`.

#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

use crate::support;
use crate::support::{publish, run};
use rules::{Column, EventKind, Rule, RuleLimits, SampleEvent, Value};

const STATEMENTS: &str = include_str!("emqx/statements.txt");
const FUNCTIONS: &str = include_str!("emqx/functions.txt");
const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/rules-conformance.md");

#[derive(Default)]
struct Statement<'a> {
    from: &'a str,
    sql: &'a str,
    over: &'a str,
    event: Option<&'a str>,
    gives: Vec<&'a str>,
    differs: Option<&'a str>,
}

fn statements() -> Vec<Statement<'static>> {
    let blocks = STATEMENTS
        .split("\n\n")
        .filter(|block| !block.trim().is_empty() && !block.starts_with('#'));
    let read = |block: &'static str| {
        let mut statement = Statement::default();
        for line in block.lines() {
            let (field, text) = line.split_once(':').expect("a line has a name");
            let text = text.trim();
            match field {
                "from" => statement.from = text,
                "sql" => statement.sql = text,
                "over" => statement.over = text,
                "event" => statement.event = Some(text),
                "gives" => statement.gives.push(text),
                "differs" => statement.differs = Some(text),
                other => panic!("unexpected line {other:?} in {block}"),
            }
        }
        statement
    };
    blocks.map(read).collect()
}

fn event(statement: &Statement<'_>) -> SampleEvent {
    let Some(name) = statement.event else {
        return publish("t/a", statement.over.as_bytes());
    };
    let kind = EventKind::ALL
        .iter()
        .find(|kind| kind.name() == name)
        .expect("an event of that name");
    let mut event = SampleEvent::example(*kind, 1_708_671_600_500);
    event.set(Column::Payload, Value::from(statement.over));
    event
}

fn outputs(statement: &Statement<'_>) -> String {
    let rule = match Rule::compile(statement.sql, &RuleLimits::default()) {
        Ok(rule) => rule.with_id("r1"),
        Err(error) => return format!("error: {error}"),
    };
    match run(&rule, &event(statement)) {
        Ok(outputs) => support::json_lines(outputs),
        Err(error) => format!("error: {error}"),
    }
}

#[test]
fn documented_statements_have_their_outputs() {
    let failures: Vec<String> = statements()
        .iter()
        .filter_map(|statement| {
            let (expected, found) = (statement.gives.join("\n"), outputs(statement));
            (expected != found).then(|| format!("{}\n  expected {expected}\n  found    {found}", statement.sql))
        })
        .collect();
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn page_is_up_to_date() {
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let kept = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        kept == page,
        "docs/internals/rules-conformance.md is out of date: UPDATE=1 cargo test -p tidewire-rules --test it emqx_statements"
    );
}

fn page() -> String {
    let functions: Vec<&str> = FUNCTIONS
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let deviations: Vec<&str> = functions.iter().filter_map(|line| line.strip_prefix("~ ")).collect();
    let statements = statements();
    let different = statements
        .iter()
        .filter(|statement| statement.differs.is_some())
        .count();
    let mut page = format!(
        "<!-- Generated from crates/rules/tests/emqx: UPDATE=1 cargo test -p tidewire-rules --test it emqx_statements -->\n\n\
         # Rules: conformance with EMQX\n\n\
         Examples from EMQX's documentation (5.8) and their results in tidewire; each is a test. Statements from *behaviour* test\n\
         details that the documentation leaves open.\n\n\
         | kind | examples | same | different |\n|---|---:|---:|---:|\n\
         | functions | {} | {} | {} |\n| statements | {} | {} | {} |\n\n\
         ## Functions with a different result\n\n| example | here | why |\n|---|---|---|\n",
        functions.len(),
        functions.len() - deviations.len(),
        deviations.len(),
        statements.len(),
        statements.len() - different,
        different,
    );
    for deviation in deviations {
        let mut parts = deviation.splitn(3, " | ");
        let mut next = || parts.next().unwrap_or_default();
        page += &format!("| {} | {} | {} |\n", code(next()), code(next()), next());
    }
    page += "\n## Statements\n\n| from | statement | result | remark |\n|---|---|---|---|\n";
    for statement in &statements {
        let gives = if statement.gives.iter().all(|line| line.is_empty()) {
            "nothing".to_owned()
        } else {
            statement
                .gives
                .iter()
                .map(|line| code(line))
                .collect::<Vec<_>>()
                .join("<br>")
        };
        let input = statement
            .event
            .map_or(code(statement.over), |event| format!("event `{event}`"));
        page += &format!(
            "| {} | {}<br>over {input} | {gives} | {} |\n",
            statement.from,
            code(statement.sql),
            statement.differs.unwrap_or_default()
        );
    }
    page
}

/// Formats text as code in a table cell.
fn code(text: &str) -> String {
    let shown: String = text.chars().take(200).collect();
    let dots = if shown.len() < text.len() { "…" } else { "" };
    format!("`{}{dots}`", shown.replace('|', "\\|"))
}
