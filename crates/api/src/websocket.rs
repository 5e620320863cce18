//! A WebSocket (RFC 6455) on which the server tells and the client listens: the upgrade, frames of text out, and of what comes
//! in only that the client is there or goes.
//!
//! Who may was checked before, by a token that no page of a stranger has: the origin of a page need not be looked at. It is checked
//! again while it is open: a login that has ended ends it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use net::websocket::frame::{CloseCode, Decoder, Opcode, frame_header};
use net::websocket::handshake::accept_key;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::guard::Pass;
use crate::problem::Problem;

/// What a client offers that logs in by sub-protocol; what it chooses beside its token.
const SUB_PROTOCOL: &str = "tidewire";

/// How often a client is asked whether it is there. One that has said nothing for two of these is gone.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// How often the login is looked at anew.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the client has to take the last frame.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Where a WebSocket comes from once the answer was sent.
pub struct Upgrading {
    on_upgrade: OnUpgrade,
    pass: Arc<Pass>,
}

/// The answer to a request that the guard has let through, for a [`WebSocket`].
pub fn upgrade_guarded(request: &mut Request) -> Result<(Response, Upgrading), Problem> {
    let pass = request.extensions_mut().remove::<Arc<Pass>>();
    let (response, on_upgrade) = upgrade(request)?;
    let pass = pass.ok_or_else(|| Problem::unauthorized("a WebSocket needs a login"))?;
    Ok((response, Upgrading { on_upgrade, pass }))
}

/// As `upgrade_guarded`, for MQTT, which the client has to offer [MQTT-6.0.0-3]; the parts, because others go on with it.
pub fn upgrade_to_mqtt(request: &mut Request) -> Result<(Response, OnUpgrade, Arc<Pass>), Problem> {
    const MQTT: &str = "mqtt";
    if !sub_protocols(request.headers()).any(|offered| offered == MQTT) {
        key(request.headers())?;
        return Err(Problem::bad_request("Sec-WebSocket-Protocol must offer mqtt"));
    }
    let (mut response, Upgrading { on_upgrade, pass }) = upgrade_guarded(request)?;
    let headers = response.headers_mut();
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(MQTT));
    Ok((response, on_upgrade, pass))
}

/// The answer to a request for an upgrade, and where the connection comes from once it was sent.
pub fn upgrade(request: &mut Request) -> Result<(Response, OnUpgrade), Problem> {
    let headers = request.headers();
    let key = key(headers)?.to_owned();
    let has_sub_protocol = sub_protocols(headers).any(|offered| offered == SUB_PROTOCOL);
    let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let on_upgrade = on_upgrade.ok_or_else(|| Problem::bad_request("HTTP/1.1 is required for a WebSocket"))?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(accept_key(&key)).expect("base64 is text");
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if has_sub_protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUB_PROTOCOL));
    }
    Ok((response, on_upgrade))
}

/// What the client offers to speak, in its order. Pages cannot set other headers.
pub fn sub_protocols(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}

fn key(headers: &HeaderMap) -> Result<&str, Problem> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let has = |name, word: &str| text(name).split(',').any(|item| item.trim().eq_ignore_ascii_case(word));
    if !has(header::UPGRADE, "websocket") || !has(header::CONNECTION, "upgrade") {
        let detail = "this is a WebSocket: use a client that speaks it, such as `tidewire rule tail` or websocat";
        let problem = Problem::of_status(StatusCode::UPGRADE_REQUIRED, detail.into());
        return Err(problem.with_header(header::UPGRADE, HeaderValue::from_static("websocket")));
    }
    if text(header::SEC_WEBSOCKET_VERSION) != "13" {
        let problem = Problem::bad_request("Sec-WebSocket-Version 13 is required");
        return Err(problem.with_header(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")));
    }
    match text(header::SEC_WEBSOCKET_KEY) {
        key if key.len() == 24 => Ok(key),
        _ => Err(Problem::bad_request("Sec-WebSocket-Key is missing or wrong")),
    }
}

type Stream = TokioIo<Upgraded>;

/// The server's side of an upgraded connection.
pub struct WebSocket {
    reader: ReadHalf<Stream>,
    writer: WriteHalf<Stream>,
    decoder: Decoder,
    ping: Interval,
    check: Interval,
    pass: Arc<Pass>,
    /// Pings since the client was last heard of.
    unanswered: u32,
}

/// What comes first.
pub enum Next<T> {
    Ready(T),
    /// The client goes, or is gone, or may not stay.
    Gone,
}

impl WebSocket {
    /// `None`: the client went before the upgrade was done.
    pub async fn new(upgrading: Upgrading) -> Option<WebSocket> {
        let (reader, writer) = tokio::io::split(TokioIo::new(upgrading.on_upgrade.await.ok()?));
        let every = |period| {
            let mut interval = interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval.reset();
            interval
        };
        Some(WebSocket {
            reader,
            writer,
            decoder: Decoder::default(),
            ping: every(PING_INTERVAL),
            check: every(CHECK_INTERVAL),
            pass: upgrading.pass,
            unanswered: 0,
        })
    }

    /// Waits for `ready`, and meanwhile listens to the client.
    pub async fn wait_for<T>(&mut self, ready: impl Future<Output = T>) -> Next<T> {
        let mut ready = std::pin::pin!(ready);
        let mut buffer = [0; 1024];
        loop {
            let is_there = tokio::select! {
                value = &mut ready => return Next::Ready(value),
                read = self.reader.read(&mut buffer) => match read {
                    Ok(size) if size > 0 => self.heard(&mut buffer[..size]).await,
                    _ => false,
                },
                _ = self.ping.tick() => self.ask().await,
                _ = self.check.tick() => self.pass.is_good(),
            };
            if !is_there {
                return Next::Gone;
            }
        }
    }

    pub async fn send(&mut self, text: &str) -> io::Result<()> {
        self.frame(Opcode::Text, text.as_bytes()).await
    }

    /// Says goodbye.
    pub async fn close(mut self) {
        let code = match self.decoder.close_code() {
            Some(code) => code,
            None if self.pass.is_good() => CloseCode::NORMAL,
            None => CloseCode::POLICY_VIOLATION,
        };
        // Who does not take it is gone.
        let _ = timeout(CLOSE_WITHIN, async {
            self.frame(Opcode::Close, &code.0.to_be_bytes()).await?;
            self.writer.shutdown().await
        })
        .await;
    }

    async fn heard(&mut self, bytes: &mut [u8]) -> bool {
        self.unanswered = 0;
        let is_over = self.decoder.decode(bytes).ended.is_some();
        if let Some(payload) = self.decoder.take_ping() {
            return !is_over && self.frame(Opcode::Pong, &payload).await.is_ok();
        }
        !is_over
    }

    async fn ask(&mut self) -> bool {
        self.unanswered += 1;
        self.unanswered <= 2 && self.frame(Opcode::Ping, &[]).await.is_ok()
    }

    /// A peer that takes nothing is cut off by the guard below.
    async fn frame(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let (header, size) = frame_header(opcode, payload.len());
        self.writer.write_all(&header[..size]).await?;
        self.writer.write_all(payload).await?;
        self.writer.flush().await
    }
}
