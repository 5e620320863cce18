//! Checks the lists of statements and writes `docs/internals/conformance.md` from them.
//!
//! This file repeats the numbering of both standards, by section, so that a missing statement fails a test.
//! Three labels are irregular. MQTT 3.1.1 prints MQTT-3.1.2-7 as 3.1.2.7 and MQTT-3.8.3-4 as 3-8.3-4. MQTT 5.0 has no
//! MQTT-2.2.1-1, and its appendix calls MQTT-4.2-1 of the text MQTT-4.2.0-1.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use toml::{Table, Value};

struct Standard {
    name: &'static str,
    file: &'static str,
    /// Section, first number and last number of the statements.
    numbering: &'static [(&'static str, u32, u32)],
    count: usize,
}

const STANDARDS: [Standard; 2] = [
    Standard {
        name: "MQTT 3.1.1",
        file: "mqtt-3.1.1.toml",
        numbering: &MQTT_3_1_1,
        count: 141,
    },
    Standard {
        name: "MQTT 5.0",
        file: "mqtt-5.0.toml",
        numbering: &MQTT_5_0,
        count: 251,
    },
];

#[rustfmt::skip]
const MQTT_3_1_1: [(&str, u32, u32); 39] = [
    ("1.5.3", 1, 3), ("2.2.2", 1, 2), ("2.3.1", 1, 7), ("3.1.0", 1, 2), ("3.1.2", 1, 24), ("3.1.3", 1, 11),
    ("3.1.4", 1, 5), ("3.2.0", 1, 1), ("3.2.2", 1, 6), ("3.3.1", 1, 12), ("3.3.2", 1, 3), ("3.3.4", 1, 1),
    ("3.3.5", 1, 2), ("3.6.1", 1, 1), ("3.8.1", 1, 1), ("3.8.3", 1, 4), ("3.8.4", 1, 6), ("3.9.3", 1, 2),
    ("3.10.1", 1, 1), ("3.10.3", 1, 2), ("3.10.4", 1, 6), ("3.12.4", 1, 1), ("3.14.1", 1, 1), ("3.14.4", 1, 3),
    ("4.1.0", 1, 2), ("4.3.1", 1, 1), ("4.3.2", 1, 2), ("4.3.3", 1, 2), ("4.4.0", 1, 1), ("4.5.0", 1, 2),
    ("4.6.0", 1, 6), ("4.7.1", 1, 3), ("4.7.2", 1, 1), ("4.7.3", 1, 4), ("4.8.0", 1, 2), ("6.0.0", 1, 4),
    ("7.0.0", 1, 2), ("7.1.1", 1, 1), ("7.1.2", 1, 1),
];

#[rustfmt::skip]
const MQTT_5_0: [(&str, u32, u32); 56] = [
    ("1.5.4", 1, 3), ("1.5.5", 1, 1), ("1.5.7", 1, 1), ("2.1.3", 1, 1), ("2.2.1", 2, 6), ("2.2.2", 1, 1),
    ("3.1.0", 1, 2), ("3.1.2", 1, 30), ("3.1.3", 1, 12), ("3.1.4", 1, 6), ("3.2.0", 1, 2), ("3.2.2", 1, 22),
    ("3.3.1", 1, 13), ("3.3.2", 1, 20), ("3.3.4", 1, 10), ("3.4.2", 1, 3), ("3.5.2", 1, 3), ("3.6.1", 1, 1),
    ("3.6.2", 1, 3), ("3.7.2", 1, 3), ("3.8.1", 1, 1), ("3.8.3", 1, 5), ("3.8.4", 1, 8), ("3.9.2", 1, 2),
    ("3.9.3", 1, 2), ("3.10.1", 1, 1), ("3.10.3", 1, 2), ("3.10.4", 1, 6), ("3.11.2", 1, 2), ("3.11.3", 1, 2),
    ("3.12.4", 1, 1), ("3.14.0", 1, 1), ("3.14.1", 1, 1), ("3.14.2", 1, 4), ("3.14.4", 1, 3), ("3.15.1", 1, 1),
    ("3.15.2", 1, 3), ("4.1.0", 1, 2), ("4.2", 1, 1), ("4.3.1", 1, 1), ("4.3.2", 1, 5), ("4.3.3", 1, 13),
    ("4.4.0", 1, 2), ("4.5.0", 1, 2), ("4.6.0", 1, 6), ("4.7.0", 1, 1), ("4.7.1", 1, 2), ("4.7.2", 1, 1),
    ("4.7.3", 1, 4), ("4.8.2", 1, 6), ("4.9.0", 1, 3), ("4.12.0", 1, 7), ("4.12.1", 1, 2), ("4.13.1", 1, 1),
    ("4.13.2", 1, 1), ("6.0.0", 1, 4),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Tested,
    NotApplicable,
    Gap,
}

const STATUSES: [(Status, &str); 3] = [
    (Status::Tested, "tested"),
    (Status::NotApplicable, "not applicable"),
    (Status::Gap, "gap"),
];

struct Statement {
    id: String,
    binds: String,
    text: String,
    status: Status,
    tests: Vec<String>,
    reason: String,
}

fn root() -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .canonicalize()
        .expect("the workspace is two levels up")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn statements(standard: &Standard) -> Vec<Statement> {
    let text = read(&root().join("tests/conformance").join(standard.file));
    let table: Table = text
        .parse()
        .unwrap_or_else(|error| panic!("{}: {error}", standard.file));
    let list = table["statement"].as_array().expect("a list of statements");
    list.iter().map(statement).collect()
}

fn statement(value: &Value) -> Statement {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let tests = value.get("tests").and_then(Value::as_array).into_iter().flatten();
    let id = text("id");
    let status = STATUSES.iter().find(|(_, name)| *name == text("status"));
    Statement {
        status: status
            .unwrap_or_else(|| panic!("{id}: unknown status {:?}", text("status")))
            .0,
        id,
        binds: text("binds"),
        text: text("text"),
        tests: tests
            .map(|name| name.as_str().expect("the name of a test").to_owned())
            .collect(),
        reason: text("reason"),
    }
}

fn expected_ids(standard: &Standard) -> Vec<String> {
    let of_section = |(section, first, last): &(&str, u32, u32)| {
        let section = section.to_string();
        (*first..=*last).map(move |number| format!("MQTT-{section}-{number}"))
    };
    standard.numbering.iter().flat_map(of_section).collect()
}

#[test]
fn every_statement_is_listed_once_and_in_order() {
    for standard in &STANDARDS {
        let found: Vec<String> = statements(standard).into_iter().map(|statement| statement.id).collect();
        assert_eq!(found, expected_ids(standard), "{}", standard.file);
        assert_eq!(found.len(), standard.count);
    }
}

#[test]
fn every_statement_has_tests_or_a_reason() {
    for statement in STANDARDS.iter().flat_map(statements) {
        let Statement { id, binds, text, .. } = &statement;
        assert!(
            ["server", "client", "both"].contains(&binds.as_str()),
            "{id} binds {binds:?}"
        );
        assert!(text.ends_with('.') && text.len() > 10, "{id}: {text:?}");
        match statement.status {
            Status::Tested => {
                assert!(!statement.tests.is_empty(), "{id}: names no test");
                assert!(statement.reason.is_empty(), "{id}: is tested and needs no reason");
            }
            Status::NotApplicable => assert!(
                statement.tests.is_empty() && statement.reason.ends_with('.'),
                "{id}: is not applicable and needs a reason"
            ),
            Status::Gap => assert!(statement.reason.ends_with('.'), "{id}: is a gap and needs a reason"),
        }
    }
}

/// Resolves `module::name` in this directory, or `path/from/the/root.rs::name`.
fn file_of(test: &str) -> (PathBuf, &str) {
    let (place, name) = test.rsplit_once("::").unwrap_or_else(|| panic!("{test} has no module"));
    let file = if place.contains('/') {
        root().join(place)
    } else {
        root().join("tests/conformance").join(place).with_extension("rs")
    };
    (file, name)
}

#[test]
fn every_listed_test_exists() {
    for statement in STANDARDS.iter().flat_map(statements) {
        for test in &statement.tests {
            let (file, name) = file_of(test);
            let code = read(&file);
            let heading = format!("#[test]\nfn {name}(");
            let indented = format!("#[test]\n    fn {name}(");
            assert!(
                code.contains(&heading) || code.contains(&indented),
                "{}: no test {test}",
                statement.id
            );
        }
    }
}

/// `UPDATE=1 cargo test -p tidewire --test it conformance` updates the page.
#[test]
fn page_is_up_to_date() {
    let path = root().join("docs/internals/conformance.md");
    let page = page();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &page).expect("docs/ is writable");
    }
    assert!(
        std::fs::read_to_string(&path).is_ok_and(|found| found == page),
        "docs/internals/conformance.md is out of date: UPDATE=1 cargo test -p tidewire --test it conformance"
    );
}

fn page() -> String {
    let mut page = String::from(
        "<!-- Generated from tests/conformance/*.toml: UPDATE=1 cargo test -p tidewire --test it conformance -->\n\n\
         # Conformance\n\n\
         This page lists every numbered normative statement of MQTT 3.1.1 and MQTT 5.0, paraphrased, with the test that\n\
         proves it. The tests send packets to the real program over sockets (`cargo test -p tidewire --test it conformance`).\n\
         A test without a path is in `tests/conformance/`. MQTT 3.1 numbers no statements; the same code serves its clients,\n\
         and they are part of the tests.\n\n\
         | standard | statements | tested | not applicable | gaps |\n|---|---:|---:|---:|---:|\n",
    );
    let lists: Vec<Vec<Statement>> = STANDARDS.iter().map(statements).collect();
    for (standard, list) in STANDARDS.iter().zip(&lists) {
        let count = |status| list.iter().filter(|statement| statement.status == status).count();
        let [tested, not_applicable, gaps] = STATUSES.map(|(status, _)| count(status));
        let line = (standard.name, list.len(), tested, not_applicable, gaps);
        writeln!(
            page,
            "| {} | {} | {} | {} | {} |",
            line.0, line.1, line.2, line.3, line.4
        )
        .expect("a string grows");
    }
    for (standard, list) in STANDARDS.iter().zip(&lists) {
        write!(
            page,
            "\n## {}\n\n| id | binds | statement | status | proof or reason |\n|---|---|---|---|---|\n",
            standard.name
        )
        .expect("a string grows");
        list.iter().for_each(|statement| page.push_str(&row(statement)));
    }
    page
}

fn row(statement: &Statement) -> String {
    let Statement {
        id,
        binds,
        text,
        status,
        ..
    } = statement;
    let (_, status) = STATUSES
        .iter()
        .find(|(found, _)| found == status)
        .expect("every status has a name");
    let tests: Vec<String> = statement.tests.iter().map(|test| format!("`{test}`")).collect();
    let proof = [tests.join(", "), statement.reason.clone()]
        .into_iter()
        .filter(|part| !part.is_empty());
    let proof = proof.collect::<Vec<_>>().join("; ");
    format!("| {id} | {binds} | {text} | {status} | {proof} |\n")
}
