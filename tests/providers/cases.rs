//! The tests that `docs/internals/login-tests.md` names for each way to log in and each case exist.

use std::fs;
use std::path::Path;

const PAGE: &str = "docs/internals/login-tests.md";

/// The rows of each table, in the order of the page.
const CASES: [&str; 12] = [
    "right",
    "wrong",
    "expired",
    "revoked",
    "unknown",
    "superuser",
    "attributes",
    "slow",
    "down",
    "garbage",
    "rotated",
    "reconnects",
];

/// Providers of `access.providers`, sources of `access.sources`, SCRAM and single sign-on, without databases that share
/// a column.
const COLUMNS: usize = 14;

fn has_test(name: &str) -> bool {
    let (file, function) = name.rsplit_once("::").expect("a file and a function");
    let directory = if file.starts_with("crates/") { "" } else { "tests/" };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let source = fs::read_to_string(path.join(format!("{directory}{file}.rs"))).unwrap_or_default();
    // Tests of all databases have a type parameter.
    ["(", "<"]
        .iter()
        .any(|next| source.contains(&format!("\nfn {function}{next}")))
}

#[test]
fn each_login_case_has_a_test() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(PAGE);
    let page = fs::read_to_string(page).expect("the page exists");
    let (mut rows, mut columns, mut is_matrix) = (Vec::new(), 0, false);
    for row in page.lines().filter_map(|line| line.strip_prefix("| ")) {
        let mut cells = row.trim_end_matches(" |").split(" | ");
        let case = cells.next().unwrap_or_default();
        let cells: Vec<&str> = cells.collect();
        if case == "case" {
            // The first table says what the cases mean.
            is_matrix = cells.len() > 1;
            columns += if is_matrix { cells.len() } else { 0 };
            continue;
        }
        if !is_matrix {
            continue;
        }
        rows.push(case);
        for cell in cells {
            assert!(!cell.trim().is_empty(), "{case}: an empty cell");
            for name in cell.split('`').filter(|part| part.contains("::")) {
                assert!(has_test(name), "{PAGE}: {case}: no test {name}");
            }
        }
    }
    assert_eq!(rows, CASES.repeat(3), "each table has a row for each case");
    assert_eq!(columns, COLUMNS);
}
