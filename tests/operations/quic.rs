//! MQTT over QUIC as a user sees it: the listener, `tidewire pub` and `sub`, the API, and a new certificate.

use std::io::Write;
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use serde_json::{Value, json};

use crate::devices::rest::Rest;
use crate::support::api::Api;
use crate::support::*;

struct Quic {
    server: Server,
    address: SocketAddr,
}

fn certificate() -> String {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_string()]).unwrap();
    made.cert.pem() + &made.signing_key.serialize_pem()
}

fn start(options: &str) -> Quic {
    start_as(None, options)
}

fn start_as(subcommand: Option<&'static str>, options: &str) -> Quic {
    let address = free_port();
    let config = format!(
        "[listeners.quic.fleet]\nbind = \"{address}\"\ncert_file = \"{{dir}}/pem\"\nkey_file = \"{{dir}}/pem\"\n{options}"
    );
    let mut config = Config::new(config).file("pem", certificate());
    config.subcommand = subcommand;
    Quic {
        server: Server::start(&config),
        address,
    }
}

impl Quic {
    /// `ca` is a file in the directory of the server.
    fn command(&self, ca: &str, verb: &str, topic: &str, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidewire"));
        command
            .args([verb, "-L", &format!("quic://{}/{topic}", self.address), "--cafile"])
            .arg(self.server.dir().join(ca))
            .args(args);
        command
    }

    fn publish(&self, topic: &str, args: &[&str]) -> Output {
        self.command("pem", "pub", topic, args).output().unwrap()
    }

    fn subscriber(&self, topic: &str, args: &[&str]) -> Child {
        let mut command = self.command("pem", "sub", topic, args);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        child.expect("the program starts")
    }

    /// Waits until a client is connected, and returns what the API says about it.
    fn client(&self, id: &str) -> Value {
        let api = Api::of(&self.server);
        let found = || {
            let all = api.get("/api/v1/clients");
            let items = all["items"].as_array().unwrap().clone();
            items
                .into_iter()
                .find(|client| client["client_id"] == id && client["connected"] == true)
        };
        self.server.wait_until("the client is connected", |_| found().is_some());
        found().unwrap()
    }
}

#[track_caller]
fn assert_success(output: &Output) {
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn messages_pass_between_pub_and_sub_over_quic() {
    let quic = start("");
    // Less than the default of `mqtt.max_packet_size`.
    let large = "x".repeat(1_000_000);
    let file = quic.server.dir().join("large");
    std::fs::write(&file, &large).unwrap();
    let subscriber = quic.subscriber("news", &["-i", "reader", "-q", "1", "-C", "3"]);
    let client = quic.client("reader");
    assert_eq!(client["transport"], "quic", "{client}");
    for (qos, text) in [("0", "first"), ("2", "second")] {
        assert_success(&quic.publish("news", &["-q", qos, "-m", text]));
    }
    assert_success(&quic.publish("news", &["-q", "1", "-f", file.to_str().unwrap()]));
    let output = subscriber.wait_with_output().unwrap();
    assert_success(&output);
    assert!(output.stdout == format!("first\nsecond\n{large}\n").into_bytes());

    let listeners = Api::of(&quic.server).get("/api/v1/listeners");
    let own = listeners.as_array().unwrap().iter().find(|one| one["name"] == "fleet");
    let own = own.expect("the listener is listed");
    assert_eq!(
        (&own["transport"], &own["accepted"]),
        (&json!("quic"), &json!(4)),
        "{own}"
    );
}

/// Devices of the platform log in by another way than other clients.
#[test]
fn windows_of_a_fast_device_grow() {
    let quic = start_as(Some("--demo"), "");
    Rest::login(&quic.server).device("meter", "meter-token");
    let args = ["-u", "meter-token", "-q", "1", "-l"];
    let mut command = quic.command("pem", "pub", "v1/devices/me/telemetry", &args);
    let mut meter = command.stdin(Stdio::piped()).spawn().unwrap();
    let mut lines = meter.stdin.take().unwrap();
    let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(4000));
    quic.server.wait_until("a window has grown", |server| {
        lines.write_all(line.repeat(50).as_bytes()).unwrap();
        let (_, metrics) = server.http_get("/metrics");
        let value = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tidewire_net_quic_window_bytes "));
        value.expect("the metric exists").parse::<f64>().unwrap() > 0.0
    });
    drop(lines);
    assert!(meter.wait().unwrap().success());
}

#[test]
fn new_certificate_applies_to_new_connections() {
    let quic = start("");
    let subscriber = quic.subscriber("news", &["-i", "reader", "-C", "1"]);
    quic.client("reader");
    let dir = quic.server.dir();
    std::fs::copy(dir.join("pem"), dir.join("old")).unwrap();
    std::fs::write(dir.join("pem"), certificate()).unwrap();
    let reload = Command::new("kill")
        .args(["-HUP", &quic.server.pid().to_string()])
        .status();
    assert!(reload.unwrap().success());
    quic.server.wait_until("clients trust the new certificate", |_| {
        quic.publish("other", &["-m", "x"]).status.success()
    });
    let trusting_old = quic.command("old", "pub", "other", &["-m", "x"]).output().unwrap();
    let text = String::from_utf8_lossy(&trusting_old.stderr);
    assert!(!trusting_old.status.success() && text.contains("QUIC with"), "{text}");
    // The connection with the old certificate is still open.
    assert_success(&quic.publish("news", &["-m", "last"]));
    assert_eq!(subscriber.wait_with_output().unwrap().stdout, b"last\n");
}

#[test]
fn proxy_header_is_not_possible_with_quic() {
    let mut config = Command::new(env!("CARGO_BIN_EXE_tidewire"));
    let output = config
        .args(["check", "--set", "listeners.quic.default.proxy_protocol=on"])
        .args(["--set", "listeners.quic.default.proxy_protocol_trusted=127.0.0.1"])
        .args(["--set", "listeners.quic.default.cert_file=/nonexistent"])
        .args(["--set", "listeners.quic.default.key_file=/nonexistent"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{text}");
    assert!(
        text.contains("listeners.quic.default.proxy_protocol") && text.contains("not possible with QUIC"),
        "{text}"
    );
}
