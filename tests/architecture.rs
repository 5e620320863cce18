//! Rules of the workspace, read from `cargo metadata`: the allowed dependencies between crates, the runtimes that pure
//! crates must not pull in, and that every test file is compiled.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// Every crate of the workspace with the workspace crates that it may depend on.
const ARROWS: &[(&str, &[&str])] = &[
    ("mqtt", &[]),
    ("mqtt-client", &["mqtt"]),
    ("storage", &[]),
    ("journal", &["storage"]),
    ("input-errors", &[]),
    ("rule-values", &["input-errors"]),
    ("jq", &["rule-values"]),
    ("rules", &["mqtt", "rule-values", "jq"]),
    ("broker", &["mqtt", "journal"]),
    ("net", &["broker", "mqtt", "journal", "trust"]),
    ("auth", &["mqtt", "storage", "input-errors"]),
    ("auth-providers", &["auth", "connectors", "trust", "input-errors"]),
    ("web", &["net", "auth", "storage", "trust", "input-errors"]),
    (
        "thingsboard",
        &[
            "net",
            "auth",
            "devices",
            "platform",
            "storage",
            "timeseries",
            "web",
            "input-errors",
        ],
    ),
    (
        "api",
        &[
            "mqtt",
            "journal",
            "broker",
            "net",
            "auth",
            "integration",
            "devices",
            "platform",
            "thingsboard",
            "timeseries",
            "trust",
            "web",
        ],
    ),
    (
        "devices",
        &["mqtt", "journal", "broker", "net", "auth", "platform", "timeseries"],
    ),
    (
        "integration",
        &[
            "mqtt",
            "storage",
            "journal",
            "broker",
            "net",
            "rules",
            "connectors",
            "input-errors",
        ],
    ),
    ("trust", &[]),
    ("certificates", &["net", "storage", "connectors"]),
    ("book", &[]),
    ("connectors", &["mqtt", "mqtt-client", "storage", "journal", "trust"]),
    ("bench", &["mqtt", "mqtt-client", "trust", "input-errors"]),
    ("timeseries", &["storage"]),
    ("platform", &["mqtt", "auth", "timeseries", "input-errors"]),
    ("simulation", &["mqtt", "storage", "journal", "broker"]),
    (
        "tidewire",
        &[
            "mqtt",
            "mqtt-client",
            "storage",
            "journal",
            "broker",
            "net",
            "auth",
            "auth-providers",
            "api",
            "bench",
            "book",
            "certificates",
            "connectors",
            "integration",
            "devices",
            "platform",
            "rules",
            "thingsboard",
            "timeseries",
            "trust",
            "web",
            "input-errors",
        ],
    ),
];

/// Deterministic crates: their behaviour depends only on their input.
const PURE: &[&str] = &[
    "mqtt",
    "mqtt-client",
    "broker",
    "storage",
    "journal",
    "input-errors",
    "rule-values",
    "jq",
    "rules",
    "timeseries",
];

/// Runtimes, protocols and drivers that a pure crate must not depend on, neither directly nor indirectly.
/// TLS is a part of QUIC. `quinn-proto` uses rustls without I/O.
const ALLOWED: &[(&str, &str)] = &[("mqtt-client", "rustls")];
const IMPURE: &[&str] = &[
    "async-std",
    "axum",
    "cassandra-cpp",
    "hyper",
    "mio",
    "mysql_async",
    "polling",
    "rdkafka",
    "redis",
    "reqwest",
    "rusqlite",
    "rustls",
    "scylla",
    "smol",
    "socket2",
    "tokio",
    "tokio-postgres",
    "tungstenite",
];

fn metadata() -> Value {
    // The filter is needed because crates of other platforms are not downloaded.
    let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--offline",
            "--filter-platform",
            &platform,
        ])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Maps package ids to names. Names of workspace crates lose their prefix.
fn names(metadata: &Value) -> BTreeMap<&str, &str> {
    let packages = metadata["packages"].as_array().unwrap();
    packages
        .iter()
        .map(|package| {
            (
                package["id"].as_str().unwrap(),
                short(package["name"].as_str().unwrap()),
            )
        })
        .collect()
}

fn short(name: &str) -> &str {
    name.strip_prefix("tidewire-").unwrap_or(name)
}

/// Returns the dependencies of each package, without those of tests and build scripts.
fn dependencies(metadata: &Value) -> BTreeMap<&str, BTreeSet<&str>> {
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    nodes
        .iter()
        .map(|node| (node["id"].as_str().unwrap(), normal_dependencies(node)))
        .collect()
}

fn normal_dependencies(node: &Value) -> BTreeSet<&str> {
    let is_normal = |dep: &&Value| {
        dep["dep_kinds"]
            .as_array()
            .unwrap()
            .iter()
            .any(|kind| kind["kind"].is_null())
    };
    node["deps"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_normal)
        .map(|dep| dep["pkg"].as_str().unwrap())
        .collect()
}

fn reachable<'a>(from: &'a str, dependencies: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(id) = open.pop() {
        for dependency in &dependencies[id] {
            if seen.insert(*dependency) {
                open.push(dependency);
            }
        }
    }
    seen
}

fn members(metadata: &Value) -> Vec<&str> {
    metadata["workspace_members"]
        .as_array()
        .unwrap()
        .iter()
        .map(|id| id.as_str().unwrap())
        .collect()
}

#[test]
fn crates_depend_only_downwards() {
    let metadata = metadata();
    let (names, dependencies) = (names(&metadata), dependencies(&metadata));
    let members = members(&metadata);
    let mut wrong = Vec::new();
    for id in &members {
        let name = names[id];
        let Some((_, allowed)) = ARROWS.iter().find(|(known, _)| *known == name) else {
            wrong.push(format!(
                "{name} is not in the list of crates; add it with its allowed dependencies"
            ));
            continue;
        };
        let ours = dependencies[id]
            .iter()
            .filter(|dependency| members.contains(dependency));
        wrong.extend(
            ours.filter(|id| !allowed.contains(&names[**id]))
                .map(|id| format!("{name} depends on {}", names[id])),
        );
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn pure_crates_pull_in_no_runtime_and_no_driver() {
    let metadata = metadata();
    let (names, dependencies) = (names(&metadata), dependencies(&metadata));
    let mut wrong = Vec::new();
    for id in members(&metadata).into_iter().filter(|id| PURE.contains(&names[id])) {
        let reached = reachable(id, &dependencies);
        let impure = reached
            .into_iter()
            .map(|reached| names[reached])
            .filter(|name| IMPURE.contains(name) && !ALLOWED.contains(&(names[id], *name)));
        wrong.extend(impure.map(|impure| format!("{} pulls in {impure}", names[id])));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The other tests would prove nothing if the lists above had misspelled crate names.
#[test]
fn crate_names_of_the_lists_exist() {
    let metadata = metadata();
    let (names, dependencies) = (names(&metadata), dependencies(&metadata));
    let members = members(&metadata);
    let binary = members.iter().find(|id| names[*id] == "tidewire").unwrap();
    let reached: BTreeSet<&str> = reachable(binary, &dependencies)
        .into_iter()
        .map(|id| names[id])
        .collect();
    assert!(reached.contains("mqtt") && reached.contains("rustls"), "{reached:?}");
    assert!(members.iter().any(|id| names[*id] == "mqtt") && ARROWS.iter().all(|(name, _)| short(name) == *name));
}

/// Cargo does not discover test files in this workspace, so a file without a `mod` line would never run.
#[test]
fn every_test_file_belongs_to_a_test_binary() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap().iter();
    let targets = packages
        .filter(|package| package["source"].is_null())
        .flat_map(|package| package["targets"].as_array().unwrap());
    let mut reached = BTreeSet::new();
    for target in targets.filter(|target| target["kind"][0] == "test") {
        reach(Path::new(target["src_path"].as_str().unwrap()), &mut reached);
    }
    assert!(reached.contains(&root().join("tests/support/server.rs")));
    let mut files = Vec::new();
    rust_files(&root().join("tests"), &mut files);
    rust_files(&root().join("simulation/tests"), &mut files);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        rust_files(&entry.unwrap().path().join("tests"), &mut files);
    }
    files.retain(|file| !file.starts_with(root().join("tests/interop")) && !reached.contains(file));
    assert!(files.is_empty(), "no `mod` line includes these files: {files:#?}");
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// Adds a file and, recursively, the files of its `mod NAME;` lines.
fn reach(file: &Path, reached: &mut BTreeSet<PathBuf>) {
    let file = file.canonicalize().unwrap();
    let text = fs::read_to_string(&file).unwrap();
    let directory = file.parent().unwrap();
    let is_root = ["main", "mod"].map(Some).contains(&file.file_stem().unwrap().to_str());
    if !reached.insert(file.clone()) {
        return;
    }
    let mut path = None;
    for line in text.lines() {
        if let Some(value) = line.strip_prefix("#[path = \"") {
            path = Some(directory.join(value.trim_end_matches("\"]")));
        } else if let Some(name) = line
            .trim_start_matches("pub ")
            .strip_prefix("mod ")
            .and_then(|rest| rest.strip_suffix(';'))
        {
            let below = match is_root {
                true => directory.to_owned(),
                false => file.with_extension(""),
            };
            let candidates = [
                path.take(),
                Some(below.join(name).with_extension("rs")),
                Some(below.join(name).join("mod.rs")),
            ];
            let found = candidates.into_iter().flatten().find(|path| path.is_file());
            reach(
                &found.unwrap_or_else(|| panic!("{}: mod {name}", file.display())),
                reached,
            );
        }
    }
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.extension() {
            None => rust_files(&path, found),
            Some(extension) if extension == "rs" => found.push(path),
            Some(_) => {}
        }
    }
}

#[test]
fn releases_have_no_planted_faults() {
    let features = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO"))
            .args([
                "tree",
                "--offline",
                "--locked",
                "--prefix",
                "none",
                "--format",
                "{p} {f}",
            ])
            .args(arguments)
            .current_dir(root())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let release = features(&["-p", "tidewire", "-e", "normal"]);
    assert!(
        release.contains("tidewire-broker") && !release.contains("planted-faults"),
        "{release}"
    );
    assert!(!features(&["-p", "tidewire-simulation", "-e", "normal"]).contains("planted-faults"));
    // The feature name is spelled correctly.
    assert!(features(&["-p", "tidewire-simulation", "-e", "normal,dev"]).contains("planted-faults"));
}
