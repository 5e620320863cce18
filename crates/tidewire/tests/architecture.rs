//! The arrows between crates, as `cargo metadata` sees them: who may depend on whom, and what the pure crates keep out.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

/// Every crate of the workspace and what it may depend on among the others. Arrows go down only.
const ARROWS: &[(&str, &[&str])] = &[
    ("mqtt", &[]),
    ("storage", &[]),
    ("journal", &["storage"]),
    ("rules", &["mqtt"]),
    ("broker", &["mqtt", "journal"]),
    ("net", &["broker", "mqtt", "journal"]),
    ("auth", &["mqtt", "storage"]),
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
            "storage",
            "timeseries",
        ],
    ),
    (
        "devices",
        &["mqtt", "journal", "broker", "net", "platform", "timeseries"],
    ),
    (
        "integration",
        &["mqtt", "storage", "journal", "broker", "net", "rules", "connectors"],
    ),
    ("trust", &[]),
    ("connectors", &["mqtt", "storage", "journal", "trust"]),
    ("bench", &["mqtt", "trust"]),
    ("timeseries", &["storage"]),
    ("platform", &["mqtt", "auth", "timeseries"]),
    ("simulation", &["mqtt", "storage", "journal", "broker"]),
    (
        "tidewire",
        &[
            "mqtt",
            "storage",
            "journal",
            "broker",
            "net",
            "auth",
            "api",
            "bench",
            "connectors",
            "integration",
            "devices",
            "platform",
            "timeseries",
            "trust",
        ],
    ),
];

/// Crates that are machines: what happens in them depends on their input only.
const PURE: &[&str] = &["mqtt", "broker", "storage", "journal", "rules", "timeseries"];

/// Runtimes, protocols and drivers that a pure crate pulls in under no circumstances, however deep.
const IMPURE: &[&str] = &[
    "async-std",
    "axum",
    "cassandra-cpp",
    "hyper",
    "mio",
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
    // Crates of other platforms were never downloaded.
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

/// Package id to name, without our prefix for our own.
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

/// What each package depends on when it is built for use, tests and build scripts left out.
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
                "{name} is not in the list of crates; add it with what it may depend on"
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
            .filter(|name| IMPURE.contains(name));
        wrong.extend(impure.map(|impure| format!("{} pulls in {impure}", names[id])));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The lists above would say nothing if they named crates by names that do not exist.
#[test]
fn the_test_sees_what_it_looks_for() {
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
