//! Compares the matrix of faults and stores in `docs/operations/fault-tests.md` with the tests that it names.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Files whose tests must all be in the list.
const COMPLETE: [&str; 4] = [
    "tests/crash/failed_sync.rs",
    "tests/crash/missing.rs",
    "tests/devices/full.rs",
    "tests/rules/failed_buffers.rs",
];
/// Tests of these files that cause no fault.
const WITHOUT_FAULT: [&str; 1] = ["data_of_an_earlier_version_starts"];

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the cells of all rows of the tables on the page, without their heads.
fn rows(page: &str) -> Vec<Vec<&str>> {
    let mut rows = Vec::new();
    let mut lines = page.lines().peekable();
    while let Some(line) = lines.next() {
        let is_head = lines.peek().is_some_and(|next| next.starts_with("|---"));
        if line.starts_with('|') && !line.starts_with("|---") && !is_head {
            rows.push(line.trim_matches('|').split('|').map(str::trim).collect());
        }
    }
    rows
}

/// Returns the names of the functions with the attribute `#[test]`.
fn tests(source: &str) -> Vec<&str> {
    let mut tests = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            tests.extend(rest.split('(').next());
        }
    }
    tests
}

#[test]
fn fault_matrix_agrees_with_the_tests() {
    let page = read("docs/operations/fault-tests.md");
    let head = page
        .lines()
        .find(|line| line.starts_with('|'))
        .expect("the page has a matrix");
    let stores: Vec<&str> = head.trim_matches('|').split('|').map(str::trim).skip(1).collect();
    let (listed, matrix): (Vec<_>, Vec<_>) = rows(&page)
        .into_iter()
        .partition(|row| row[row.len() - 1].starts_with('`'));
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let mut problems = Vec::new();
    for row in &listed {
        let [fault, store, test, file] = row[..] else {
            panic!("{row:?} needs four cells")
        };
        *counts.entry((fault, store)).or_default() += 1;
        let source = read(file.trim_matches('`'));
        if !tests(&source).contains(&test.trim_matches('`')) {
            problems.push(format!("{file} has no test {test}"));
        }
    }
    for row in &matrix {
        for (store, shown) in stores.iter().zip(&row[1..]) {
            let count = counts.remove(&(row[0], store)).unwrap_or(0);
            if shown.parse().unwrap_or(0) != count {
                problems.push(format!(
                    "{}, {store}: the matrix shows {shown}, the list has {count}",
                    row[0]
                ));
            }
        }
    }
    problems.extend(counts.keys().map(|cell| format!("the matrix has no cell {cell:?}")));
    for file in COMPLETE {
        let source = read(file);
        for test in tests(&source) {
            let is_listed = listed.iter().any(|row| row[2].trim_matches('`') == test);
            if !is_listed && !WITHOUT_FAULT.contains(&test) {
                problems.push(format!("the list lacks {test} of {file}"));
            }
        }
    }
    assert!(
        problems.is_empty(),
        "docs/operations/fault-tests.md:\n{}",
        problems.join("\n")
    );
}
