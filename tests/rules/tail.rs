//! Tests the live tail of a rule, with the command and over a WebSocket.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::*;

/// A running `tidewire rule tail` to which the server already sends frames.
struct Watching {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    #[track_caller]
    fn start(server: &Server, args: &[&str]) -> Watching {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidewire"))
            .current_dir(server.dir())
            .args([
                "rule",
                "tail",
                "hot",
                "--json",
                "--api",
                &format!("http://{}", server.http()),
            ])
            .args(["--set", "node.data_dir=data"])
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let output = child.stdout.take().expect("it is piped");
        let mut watching = Watching {
            child,
            lines: BufReader::new(output).lines(),
        };
        assert_eq!(watching.next()["type"], "begin");
        watching
    }

    #[track_caller]
    fn next(&mut self) -> Value {
        let line = self.lines.next().expect("there is more").expect("it is text");
        serde_json::from_str(&line).expect("a line is a frame")
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        // The process may have ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn server_with_rule() -> Server {
    let server = Server::start(&Config::new(""));
    let rule = json!({"id": "hot", "sql": "SELECT payload.t AS t FROM \"m/#\" WHERE payload.t > 30"});
    Api::of(&server).ok("POST", "/api/v1/rules", &rule);
    server
}

#[test]
fn tail_shows_inputs_outputs_and_errors_live() {
    let server = server_with_rule();
    let mut client = server.session(&Connect::new(V4, "c"));
    client.publish(&Publish::new("m/0", "before").qos(1));
    let mut watching = Watching::start(&server, &["--count", "3"]);
    for payload in [r#"{"t": 31}"#, r#"{"t": 1}"#, "no JSON"] {
        client.publish(&Publish::new("m/1", payload).qos(1));
    }
    let hot = watching.next();
    assert_eq!(
        (&hot["type"], &hot["omitted"]),
        (&json!("sample"), &json!(0)),
        "{hot:#}"
    );
    assert_eq!(
        (&hot["input"]["topic"], &hot["outputs"]),
        (&json!("m/1"), &json!([{"t": 31}])),
        "{hot:#}"
    );
    assert_eq!(watching.next()["outputs"], json!([]));
    let poison = watching.next();
    assert!(
        poison["error"].as_str().is_some_and(|error| error.contains("line 1")),
        "{poison:#}"
    );
    assert!(watching.child.wait().expect("it ends by itself").success());
}

#[test]
fn tail_counts_omitted_messages_and_ends_with_the_rule() {
    let server = server_with_rule();
    let mut client = server.session(&Connect::new(V4, "c"));
    let mut watching = Watching::start(&server, &["--per-second", "1"]);
    let is_enough = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let enough = SetOnDrop(&is_enough);
        let publisher = scope.spawn(|| {
            let mut published = 0;
            while !is_enough.load(Ordering::Relaxed) {
                client.publish(&Publish::new("m/1", r#"{"t": 31}"#).qos(1));
                published += 1;
            }
            published
        });
        // Further messages within the same second are not shown. The next shown message contains their count.
        assert_eq!(watching.next()["omitted"], 0);
        let omitted = watching.next()["omitted"].as_u64().expect("a number");
        drop(enough);
        let published: u64 = publisher.join().expect("it publishes");
        assert!(
            omitted > 0 && omitted + 2 <= published,
            "{omitted} of {published} omitted"
        );
    });
    Api::of(&server).ok("DELETE", "/api/v1/rules/hot", &Value::Null);
    let end = loop {
        let frame = watching.next();
        if frame["type"] != "sample" {
            break frame;
        }
    };
    assert_eq!(end["type"], "end");
}

#[test]
fn tail_requires_permission_and_a_websocket() {
    let server = server_with_rule();
    let api = Api::of(&server);
    assert_eq!(server.http_get("/api/v1/rules/hot/tail").0, 401);
    assert_eq!(api.call("GET", "/api/v1/rules/none/tail", &Value::Null).0, 404);
    assert_eq!(api.call("GET", "/api/v1/rules/hot/tail", &Value::Null).0, 426);
    let (status, problem) = api.call("GET", "/api/v1/rules/hot/tail?per_second=0", &Value::Null);
    assert_eq!((status, &problem["field"]), (422, &json!("per_second")));
}
