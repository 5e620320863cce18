//! Driver around rumqttc, for MQTT 3.1.1 and 5. The protocol is described in tests/interop/README.md.
//!
//! The library reports acknowledgements as events of its loop, without the request that they belong to. The driver runs
//! the commands of a connection one after the other, so the next acknowledgement belongs to the current command.

mod v4;
mod v5;

use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, Write};
use std::pin::Pin;
use std::time::Duration;

use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Map, Value};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const PATIENCE: Duration = Duration::from_secs(15);

/// Larger than any packet of the suite.
pub const PACKET_MAX: u32 = 1024 * 1024;

/// Event of a connection's loop, independent of the protocol version.
pub enum Notice {
    /// Fields of the answer to `connect`.
    Connected(Value),
    Message(Map<String, Value>),
    /// Reason code of an acknowledgement of any type.
    Acknowledged(u8),
    Closed(Option<u8>),
}

pub type Pending<'a> = Pin<Box<dyn Future<Output = Result<(), String>> + 'a>>;

/// Common operations of the library's clients for both protocol versions.
pub trait Client {
    fn subscribe(&self, request: &Value) -> Pending<'_>;
    fn unsubscribe(&self, request: &Value) -> Pending<'_>;
    fn publish(&self, request: &Value) -> Pending<'_>;
    fn disconnect(&self) -> Pending<'_>;
}

struct Connection {
    client: Box<dyn Client>,
    notices: mpsc::UnboundedReceiver<Notice>,
    task: JoinHandle<()>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let (sender, mut lines) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            let _ = sender.send(line);
        }
    });
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async move {
            let mut connections: HashMap<String, mpsc::UnboundedSender<Value>> = HashMap::new();
            while let Some(line) = lines.recv().await {
                let request: Value = serde_json::from_str(&line).expect("the suite sends JSON");
                let name = text(&request, "as");
                let commands = connections.entry(name.clone()).or_insert_with(|| {
                    let (sender, receiver) = mpsc::unbounded_channel();
                    tokio::task::spawn_local(serve(name, receiver));
                    sender
                });
                let _ = commands.send(request);
            }
        })
        .await;
}

/// One connection, which runs its commands in order.
async fn serve(name: String, mut commands: mpsc::UnboundedReceiver<Value>) {
    let mut connection = None;
    while let Some(request) = commands.recv().await {
        let work = perform(&name, &mut connection, &request);
        let mut answer = match tokio::time::timeout(PATIENCE, work).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => json!({ "error": error }),
            Err(_) => json!({ "error": "no answer" }),
        };
        answer["id"] = request["id"].clone();
        send(&answer);
    }
}

async fn perform(name: &str, connection: &mut Option<Connection>, request: &Value) -> Result<Value, String> {
    if request["do"] == "connect" {
        return connect(name, connection, request).await;
    }
    let open = connection.as_mut().ok_or("there is no such connection")?;
    match request["do"].as_str() {
        Some("subscribe") => open.client.subscribe(request).await?,
        Some("unsubscribe") => open.client.unsubscribe(request).await?,
        Some("publish") => open.client.publish(request).await?,
        Some("disconnect") => {
            open.client.disconnect().await?;
            while !matches!(open.notices.recv().await, Some(Notice::Closed(_)) | None) {}
            return Ok(json!({}));
        }
        // Dropping the loop closes the socket without DISCONNECT.
        Some("forget") => {
            open.task.abort();
            return Ok(json!({}));
        }
        other => return Err(format!("{other:?} is no command")),
    }
    loop {
        match open.notices.recv().await {
            Some(Notice::Acknowledged(code)) => return Ok(json!({ "reason_code": code })),
            Some(Notice::Closed(_)) | None => return Err("the connection was closed".into()),
            Some(_) => {}
        }
    }
}

async fn connect(name: &str, connection: &mut Option<Connection>, request: &Value) -> Result<Value, String> {
    let (sender, mut notices) = mpsc::unbounded_channel();
    let reporter = Reporter { name: name.into(), sender };
    let (client, task): (Box<dyn Client>, _) = if request["version"] == 5 {
        let (client, events) = v5::open(request);
        (client, tokio::task::spawn_local(v5::run(events, reporter)))
    } else {
        let (client, events) = v4::open(request);
        (client, tokio::task::spawn_local(v4::run(events, reporter)))
    };
    loop {
        match notices.recv().await {
            Some(Notice::Connected(answer)) => {
                *connection = Some(Connection { client, notices, task });
                return Ok(answer);
            }
            Some(Notice::Closed(_)) | None => return Err("closed before CONNACK".into()),
            Some(_) => {}
        }
    }
}

/// Writes messages and the end of the connection to standard output. Sends other events to the waiting command.
pub struct Reporter {
    name: String,
    sender: mpsc::UnboundedSender<Notice>,
}

impl Reporter {
    pub fn report(&self, notice: Notice) {
        match notice {
            Notice::Message(mut event) => {
                event.insert("as".into(), json!(self.name));
                event.insert("event".into(), json!("message"));
                send(&Value::Object(event));
            }
            Notice::Closed(reason) => {
                send(&json!({ "as": self.name, "event": "closed", "reason_code": reason }));
                let _ = self.sender.send(Notice::Closed(reason));
            }
            other => {
                let _ = self.sender.send(other);
            }
        }
    }
}

fn send(event: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{event}").and_then(|()| out.flush());
}

pub fn text(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().into()
}

pub fn number<T: TryFrom<u64>>(value: &Value, key: &str) -> Option<T> {
    value[key].as_u64().and_then(|number| T::try_from(number).ok())
}

pub fn bytes(value: &Value, key: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text(value, key)).expect("the suite sends base64")
}

pub fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}
