//! Generates the matrix of faults and stores in `docs/operations/fault-tests.md` from the tests that cause a fault.
//!
//! Such a test has a line `// fault: <fault>; <store>, <store>` for each fault.

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/operations/fault-tests.md";

/// In the order of the page.
const FAULTS: [&str; 6] = [
    "Process killed",
    "Write or sync fails",
    "Disk full",
    "Damaged bytes",
    "Missing files",
    "Older copy",
];
const STORES: [&str; 6] = [
    "Journal",
    "Action buffers",
    "Ingest log",
    "Entity database",
    "Time series",
    "Backup and restore",
];

/// Files in which each test needs the line, except the tests of [`WITHOUT_FAULT`].
const COMPLETE: [&str; 7] = [
    "tests/crash/damage.rs",
    "tests/crash/failed_sync.rs",
    "tests/crash/full_disk.rs",
    "tests/crash/missing.rs",
    "tests/crash/skip.rs",
    "tests/devices/full.rs",
    "tests/rules/failed_buffers.rs",
];
const WITHOUT_FAULT: [&str; 1] = ["data_of_an_earlier_version_starts"];

const INTRODUCTION: &str = "\
<!-- Generated from the tests: UPDATE=1 cargo test -p tidewire --test it fault_matrix -->

# Fault tests

Tests cause each fault below on purpose. They kill the real server, load a library that makes system calls fail, fill a
file system, flip bits in files, delete files, or replace them by earlier ones. [Faults](faults.md) says what the server
does in each case.

The numbers count the tests; an empty cell means that no test causes this fault in this store.
";

const REMARKS: &str = "
A backup is verified as a whole, so its column does not distinguish stores. One test kills the server again and again
while a store chosen at random fails, under load. A kill, power cut or failed sync at a random time is tested in
addition by the [simulation](../internals/simulation.md), which runs the broker and its journal in virtual time. For
attacks instead of faults, `make attack` runs [all attacks at once](../internals/threat-model.md#all-attacks-at-once)
for ten minutes.

## Tests

| fault | store | test | file |
|---|---|---|---|
";

/// A fault that a test causes in a store.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct FaultTest {
    fault: usize,
    store: usize,
    file: String,
    name: String,
}

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Adds all Rust files of a directory, without those of `target` and `node_modules`.
fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("the directory exists") {
        let path = entry.expect("the directory can be read").path();
        let is_other = path.ends_with("node_modules") || path.ends_with("target");
        if path.is_dir() && !is_other {
            collect(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Adds the tests of a file. The error names the line.
fn read(file: &str, source: &str, tests: &mut Vec<FaultTest>) -> Result<(), String> {
    let mut faults: Vec<(usize, usize)> = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim_start) {
        if let Some(text) = line.strip_prefix("// fault: ") {
            let place = |all: &[&str], name: &str| all.iter().position(|known| *known == name);
            let parsed = text.split_once("; ").and_then(|(fault, stores)| {
                let fault = place(&FAULTS, fault)?;
                let stores = stores.split(", ").map(|store| Some((fault, place(&STORES, store)?)));
                stores.collect::<Option<Vec<_>>>()
            });
            faults.extend(parsed.ok_or_else(|| format!("{file}: unknown fault or store: {line}"))?);
        } else if line == "#[test]" {
            is_test = true;
        } else if let Some(rest) = line.strip_prefix("fn ")
            && std::mem::take(&mut is_test)
        {
            let name = rest.split('(').next().unwrap_or_default();
            if faults.is_empty() && COMPLETE.contains(&file) && !WITHOUT_FAULT.contains(&name) {
                return Err(format!("{file}: {name} needs a line // fault: <fault>; <store>"));
            }
            tests.extend(faults.drain(..).map(|(fault, store)| FaultTest {
                fault,
                store,
                file: file.to_owned(),
                name: name.to_owned(),
            }));
        }
    }
    match faults.is_empty() {
        true => Ok(()),
        false => Err(format!("{file}: a line // fault: belongs to no test")),
    }
}

fn page(tests: &[FaultTest]) -> String {
    let mut page = format!("{INTRODUCTION}\n| fault | {} |\n|---|", STORES.join(" | "));
    page.push_str(&"---:|".repeat(STORES.len()));
    for (fault, name) in FAULTS.iter().enumerate() {
        page.push_str(&format!("\n| {name} |"));
        for store in 0..STORES.len() {
            let count = tests
                .iter()
                .filter(|test| (test.fault, test.store) == (fault, store))
                .count();
            let cell = if count == 0 {
                " |".to_owned()
            } else {
                format!(" {count} |")
            };
            page.push_str(&cell);
        }
    }
    page.push('\n');
    page.push_str(REMARKS);
    for test in tests {
        let FaultTest {
            fault,
            store,
            file,
            name,
        } = test;
        page.push_str(&format!(
            "| {} | {} | `{name}` | `{file}` |\n",
            FAULTS[*fault], STORES[*store]
        ));
    }
    page
}

#[test]
fn fault_matrix_lists_the_tests() {
    let mut files = Vec::new();
    for directory in ["tests", "crates"] {
        collect(&repository().join(directory), &mut files);
    }
    let mut tests = Vec::new();
    for path in files {
        let file = path
            .strip_prefix(repository())
            .expect("it is below")
            .display()
            .to_string();
        if file != "tests/operations/fault_matrix.rs" {
            let source = fs::read_to_string(&path).expect("the file can be read");
            read(&file, &source, &mut tests).unwrap();
        }
    }
    tests.sort();
    let expected = page(&tests);
    let path = repository().join(PAGE);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &expected).expect("the page can be written");
    }
    let found = fs::read_to_string(&path).expect("the page exists");
    assert!(
        found == expected,
        "{PAGE} is old: UPDATE=1 cargo test -p tidewire --test it fault_matrix"
    );
}
