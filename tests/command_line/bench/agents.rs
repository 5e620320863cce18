//! Tests `tidewire bench` with agents in separate processes.

use std::fs;
use std::io::{BufReader, Read};
use std::process::{Child, Command, Stdio};

use super::{Broker, TIDEWIRE, pairs, refs, said, wait_for};

/// A running agent process.
struct AgentProcess {
    child: Child,
    address: String,
}

impl AgentProcess {
    fn start(args: &[&str]) -> AgentProcess {
        let mut child = Command::new(TIDEWIRE)
            .args(["bench", "agent", "--listen", "127.0.0.1:0"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let line = wait_for(&mut lines, "listening on ");
        std::thread::spawn(move || lines.read_to_string(&mut String::new()));
        let address = line.trim().rsplit(' ').next().unwrap().to_string();
        AgentProcess { child, address }
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn three_agents_share_a_run() {
    let broker = Broker::start();
    let token = broker.path("token");
    fs::write(&token, "a secret of some length\n").unwrap();
    let agents = [0; 3].map(|_| AgentProcess::start(&["--token-file", &token]));
    let addresses: Vec<&str> = agents.iter().map(|agent| agent.address.as_str()).collect();
    let list = addresses.join(",");
    let args = pairs(200);
    let more = ["--agents", &list, "--token-file", &token];
    let (code, said, result) = broker.run(&[&refs(&args)[..], &more].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&result["truth"]["expected"], &result["truth"]["lost"]),
        (&4_000.into(), &0.into()),
        "{said}"
    );
    assert_eq!(result["totals"]["received"], 4_000);
    let reported = result["agents"].as_array().unwrap();
    let clients: Vec<u64> = reported
        .iter()
        .map(|agent| agent["clients"].as_u64().unwrap())
        .collect();
    assert_eq!((clients.len(), clients.iter().sum::<u64>()), (3, 40));
    assert!(
        reported
            .iter()
            .all(|agent| agent["clock_error_ms"].as_f64().unwrap() < 100.0),
        "{reported:?}"
    );
    assert!(!result.to_string().contains("a secret"), "the token is in the result");

    // Fan-out crosses the agents: each agent has subscribers of publishers on other agents.
    let fan = [
        "run",
        "fanout",
        "--scale",
        "0.03",
        "--duration",
        "1",
        "--warm-up",
        "0",
        "--set",
        "publishers.publish.rate=10",
    ];
    let (code, said, result) = broker.run(&[&fan[..], &more].concat());
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        (&result["truth"]["expected"], &result["truth"]["lost"]),
        (&3_000.into(), &0.into()),
        "{said}"
    );

    let other = broker.path("other");
    fs::write(&other, "another secret, as long").unwrap();
    let (code, said, _) = broker.run(&[&refs(&args)[..], &["--agents", &list, "--token-file", &other]].concat());
    assert_eq!(code, 1);
    assert!(said.contains("the tokens differ"), "{said}");
}

#[test]
fn killed_agent_ends_the_run_with_partial_results() {
    let broker = Broker::start();
    let mut agents = [0; 3].map(|_| AgentProcess::start(&[]));
    let list = agents
        .iter()
        .map(|agent| agent.address.as_str())
        .collect::<Vec<_>>()
        .join(",");
    let mut run = broker
        .command(&[
            "run",
            "p2p",
            "--scale",
            "0.02",
            "--duration",
            "600",
            "--warm-up",
            "0",
            "--agents",
            &list,
        ])
        .args(["--set", "publishers.publish.rate=10"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(run.stdout.take().unwrap());
    wait_for(&mut lines, "measuring");
    while wait_for(&mut lines, " delivered/s").contains(" 0 delivered/s") {}
    agents[1].child.kill().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{rest}");
    let complaint = said(&output);
    assert!(
        complaint.contains(&format!("{}: closed the connection", agents[1].address)),
        "{complaint}"
    );
    let result = broker.result();
    assert_eq!(result["is_interrupted"], true);
    assert!(result["totals"]["received"].as_u64().unwrap() > 0);
}
