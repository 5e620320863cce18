//! Clients with Kerberos tickets, with a key distribution center and the real binary. In builds that include it:
//! `dev/cargo test --workspace --features tidewire/kerberos --test it kerberos_logins`.
//!
//! `dev/kerberos-client` is the client's side of GSSAPI.

mod faults;
mod logins;

use std::io::{BufRead, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::rules::real_servers::Started;
use crate::support::packet::frame;
use crate::support::*;

const METHOD: &str = "GSSAPI-KERBEROS";
const SERVICE: &str = "mqtt/127.0.0.1@TIDEWIRE.TEST";
const NOT_AUTHORIZED: u8 = 0x87;
const CONTINUE: u8 = 0x18;
const REAUTHENTICATE: u8 = 0x19;
/// The security layer that both sides choose: none.
const NO_LAYER: [u8; 4] = [1, 0, 0, 0];

const RULES: &str = "\
user meter-1
topic readwrite short/#
user meter-1@TIDEWIRE.TEST
topic readwrite long/#
";

/// A realm with the principals of two servers and two clients.
struct Realm {
    kdc: Started,
}

impl Realm {
    fn new() -> Realm {
        let realm = Realm {
            kdc: Started::new("kdc", &[]),
        };
        for principal in ["mqtt/127.0.0.1", "other/127.0.0.1", "meter-1", "meter-2"] {
            realm.call("principal", principal);
        }
        realm
    }

    #[track_caller]
    fn call(&self, verb: &str, principal: &str) {
        let output = self.kdc.call(verb, &[principal]).expect("dev/kdc runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "dev/kdc {verb} {principal}: {errors}");
    }

    fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.kdc.address)
    }

    /// Returns the configuration of a server, with further options of `access.kerberos`.
    fn config(&self, more: &str) -> Config {
        let keytab = self.file("mqtt-127.0.0.1.keytab");
        let text = format!(
            "[access]\nanonymous = \"never\"\nproviders = [\"users\", \"kerberos\"]\nacl_file = \"{{dir}}/rules\"\n\
             [access.kerberos]\nprincipal = \"{SERVICE}\"\nkeytab_file = \"{keytab}\"\n{more}"
        );
        Config::new(text)
            .file("rules", RULES)
            .environment("KRB5_CONFIG", self.file("krb5.conf"))
            .environment("KRB5RCACHEDIR", "{dir}")
    }

    /// Like `config`, for a server whose clock may differ from that of clients by a few seconds only.
    fn config_with_clock_skew(&self, seconds: u32, more: &str) -> Config {
        let text = self.kdc.file("kerberos/krb5.conf");
        let text = text.replace("[libdefaults]", &format!("[libdefaults]\n  clockskew = {seconds}"));
        // The last value of a variable counts.
        self.config(more)
            .file("krb5.conf", text)
            .environment("KRB5_CONFIG", "{dir}/krb5.conf")
    }

    fn server(&self, more: &str) -> Server {
        Server::start(&self.config(more))
    }

    /// Returns a client that gets its ticket with the keytab of a principal.
    fn client(&self, principal: &str) -> Client {
        let keytab = self.file(&format!("{principal}.keytab"));
        Client::new(
            self,
            &[("KRB5CCNAME", "MEMORY:client"), ("KRB5_CLIENT_KTNAME", keytab.as_str())],
        )
    }

    /// Logs in. Returns the peer, and the code of CONNACK.
    #[track_caller]
    fn log_in(&self, server: &Server, principal: &str) -> (Peer, u8) {
        let mut client = self.client(principal);
        let token = client.start();
        let mut peer = server.connect().speak(V5);
        peer.send(&connect(&token).bytes());
        client.finish(&mut peer, "");
        let code = peer.expect_packet().connack(V5).code;
        (peer, code)
    }
}

/// A running `dev/kerberos-client`.
struct Client {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Client {
    fn new(realm: &Realm, environment: &[(&str, &str)]) -> Client {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dev/kerberos-client");
        let mut command = Command::new(script);
        command.env("KRB5_CONFIG", realm.file("krb5.conf"));
        command.envs(environment.iter().copied());
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("Python is installed");
        Client {
            input: process.stdin.take().expect("it is piped"),
            output: BufReader::new(process.stdout.take().expect("it is piped")),
            process,
        }
    }

    #[track_caller]
    fn ask(&mut self, command: &str) -> Vec<u8> {
        writeln!(self.input, "{command}").expect("the client reads");
        let mut line = String::new();
        self.output.read_line(&mut line).expect("the client answers");
        let line = line.trim();
        assert!(!line.starts_with("error"), "{command:.40}: {line}");
        let digits = (0..line.len() / 2).map(|at| &line[2 * at..2 * at + 2]);
        digits
            .map(|digits| u8::from_str_radix(digits, 16).expect("hexadecimal"))
            .collect()
    }

    /// Returns the first token for the server.
    #[track_caller]
    fn start(&mut self) -> Vec<u8> {
        self.ask(&format!("start {SERVICE}"))
    }

    /// Answers the server until it decides. `identity` is the authorization identity.
    #[track_caller]
    fn finish(&mut self, peer: &mut Peer, identity: &str) {
        let answer = self.ask(&format!("token {}", hex(&read_auth(peer))));
        peer.send(&auth(CONTINUE, &answer));
        self.choose(peer, &[&NO_LAYER, identity.as_bytes()].concat());
    }

    /// Answers the offer of security layers.
    #[track_caller]
    fn choose(&mut self, peer: &mut Peer, choice: &[u8]) {
        let offer = self.ask(&format!("unwrap {}", hex(&read_auth(peer))));
        assert_eq!(offer, NO_LAYER);
        let last = self.ask(&format!("wrap {}", hex(choice)));
        peer.send(&auth(CONTINUE, &last));
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn properties(data: &[u8]) -> Vec<u8> {
    let mut properties = prop::text(prop::AUTHENTICATION_METHOD, METHOD);
    properties.extend(prop::text(prop::AUTHENTICATION_DATA, data));
    properties
}

fn connect(token: &[u8]) -> Connect {
    Connect::new(V5, unique("kerberos")).property(properties(token))
}

fn auth(reason: u8, data: &[u8]) -> Vec<u8> {
    let properties = prop::list(&properties(data));
    frame(0xF0, &[vec![reason], properties].concat())
}

/// Returns the data of the AUTH 0x18 that the server sends next.
#[track_caller]
fn read_auth(peer: &mut Peer) -> Vec<u8> {
    let packet = peer.expect(kind::AUTH);
    assert_eq!(packet.body[0], CONTINUE, "{packet:?}");
    let properties = packet.properties();
    assert_eq!(properties.bytes(prop::AUTHENTICATION_METHOD), Some(METHOD.as_bytes()));
    properties
        .bytes(prop::AUTHENTICATION_DATA)
        .expect("a message of the server")
        .to_vec()
}

/// Returns the code with which the server rejects a CONNECT at once.
#[track_caller]
fn rejection(server: &Server, connect: &Connect) -> u8 {
    let mut peer = server.connect();
    let connack = peer.handshake(connect);
    assert_eq!(connack.properties.get(prop::AUTHENTICATION_DATA), None, "{connack:?}");
    assert!(peer.expect_closed(PATIENCE).packets.is_empty());
    connack.code
}

/// Waits until the log contains the reason of a rejection.
#[track_caller]
fn expect_reason(server: &Server, reason: &str) {
    server.wait_until(&format!("the log contains {reason:?}"), |server| {
        server.log().contains(reason)
    });
}
