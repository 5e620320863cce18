//! A WebSocket (RFC 6455) that sends text frames to a client. From the client it only reads pings, pongs and close
//! frames.
//!
//! The guard has checked the token before. Foreign web pages do not have a token, so the origin need not be checked.
//! The login is checked again at intervals and when a user, a key or a login changes. The WebSocket closes when the
//! login has ended or its role was lowered.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use net::websocket::frame::{CloseCode, FrameDecoder, Opcode, frame_header};
use net::websocket::handshake::accept_key;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use crate::answer_memory::ClientAnswers;
use crate::guard::LoginRecheck;
use crate::problem::HttpProblem;
use crate::sub_protocols::sub_protocols;

/// Sub-protocol that the server selects if the client sends its token as a sub-protocol.
const SUB_PROTOCOL: &str = "tidewire";

/// Interval of pings. A client that does not answer two pings is disconnected.
const PING_INTERVAL: Duration = Duration::from_secs(20);

/// Interval of the check of the login.
pub const CHECK_INTERVAL: Duration = Duration::from_secs(5);

/// How long the client may take to accept the close frame.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// The source of a WebSocket after the answer was sent.
pub struct PendingUpgrade {
    on_upgrade: OnUpgrade,
    login_check: LoginRecheck,
    answers: ClientAnswers,
}

/// Returns the answer to a request that the guard has admitted, and the source of its [`ServerWebSocket`].
pub fn upgrade_guarded(request: &mut Request) -> Result<(Response, PendingUpgrade), HttpProblem> {
    let pass = request.extensions_mut().remove::<LoginRecheck>();
    let answers = request.extensions_mut().remove::<ClientAnswers>();
    let (response, on_upgrade) = upgrade(request)?;
    let pass = pass.ok_or_else(|| HttpProblem::unauthorized("a WebSocket needs a login"))?;
    let answers = answers.ok_or_else(|| HttpProblem::internal("the connection has no memory for answers"))?;
    Ok((
        response,
        PendingUpgrade {
            on_upgrade,
            login_check: pass,
            answers,
        },
    ))
}

/// Like `upgrade_guarded`, for MQTT: the client must offer the sub-protocol [MQTT-6.0.0-3]. Returns the parts, because
/// the broker takes over the connection.
pub fn upgrade_to_mqtt(request: &mut Request) -> Result<(Response, OnUpgrade, LoginRecheck), HttpProblem> {
    const MQTT: &str = "mqtt";
    if !sub_protocols(request.headers()).any(|offered| offered == MQTT) {
        key(request.headers())?;
        return Err(HttpProblem::bad_request("Sec-WebSocket-Protocol must offer mqtt"));
    }
    let (
        mut response,
        PendingUpgrade {
            on_upgrade,
            login_check: pass,
            ..
        },
    ) = upgrade_guarded(request)?;
    let headers = response.headers_mut();
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(MQTT));
    Ok((response, on_upgrade, pass))
}

/// Returns the answer to an upgrade request, and the source of the connection after the answer was sent.
pub fn upgrade(request: &mut Request) -> Result<(Response, OnUpgrade), HttpProblem> {
    let headers = request.headers();
    let key = key(headers)?.to_owned();
    let has_sub_protocol = sub_protocols(headers).any(|offered| offered == SUB_PROTOCOL);
    let on_upgrade = request.extensions_mut().remove::<OnUpgrade>();
    let on_upgrade = on_upgrade.ok_or_else(|| HttpProblem::bad_request("HTTP/1.1 is required for a WebSocket"))?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    let accept = HeaderValue::try_from(accept_key(&key)).expect("base64 is ASCII");
    let headers = response.headers_mut();
    headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    if has_sub_protocol {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(SUB_PROTOCOL));
    }
    Ok((response, on_upgrade))
}

fn key(headers: &HeaderMap) -> Result<&str, HttpProblem> {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    };
    let has = |name, word: &str| text(name).split(',').any(|item| item.trim().eq_ignore_ascii_case(word));
    if !has(header::UPGRADE, "websocket") || !has(header::CONNECTION, "upgrade") {
        let detail = "this path is a WebSocket: use a WebSocket client, such as `tidewire rule tail` or websocat";
        let problem = HttpProblem::of_status(StatusCode::UPGRADE_REQUIRED, detail.into());
        return Err(problem.with_header(header::UPGRADE, HeaderValue::from_static("websocket")));
    }
    if text(header::SEC_WEBSOCKET_VERSION) != "13" {
        let problem = HttpProblem::bad_request("Sec-WebSocket-Version 13 is required");
        return Err(problem.with_header(header::SEC_WEBSOCKET_VERSION, HeaderValue::from_static("13")));
    }
    match text(header::SEC_WEBSOCKET_KEY) {
        key if key.len() == 24 => Ok(key),
        _ => Err(HttpProblem::bad_request("Sec-WebSocket-Key is missing or invalid")),
    }
}

type UpgradedStream = TokioIo<Upgraded>;

/// The server's end of a WebSocket.
pub struct ServerWebSocket {
    reader: ReadHalf<UpgradedStream>,
    writer: WriteHalf<UpgradedStream>,
    decoder: FrameDecoder,
    ping: Interval,
    check: Interval,
    login_check: LoginRecheck,
    answers: ClientAnswers,
    /// Pings since the last frame from the client.
    unanswered: u32,
}

/// The event that `wait_for` returns.
pub enum WaitResult<T> {
    Ready(T),
    /// The client has closed the WebSocket, was disconnected, or its login has ended.
    Closed,
}

impl ServerWebSocket {
    /// `None`: the client disconnected before the upgrade.
    pub async fn new(upgrading: PendingUpgrade) -> Option<ServerWebSocket> {
        let (reader, writer) = tokio::io::split(TokioIo::new(upgrading.on_upgrade.await.ok()?));
        let every = |period| {
            let mut interval = interval(period);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval.reset();
            interval
        };
        Some(ServerWebSocket {
            reader,
            writer,
            decoder: FrameDecoder::default(),
            ping: every(PING_INTERVAL),
            check: every(CHECK_INTERVAL),
            login_check: upgrading.login_check,
            answers: upgrading.answers,
            unanswered: 0,
        })
    }

    /// Waits for `ready`, and processes frames from the client while waiting.
    pub async fn wait_for<T>(&mut self, ready: impl Future<Output = T>) -> WaitResult<T> {
        let mut ready = std::pin::pin!(ready);
        let mut buffer = [0; 1024];
        loop {
            let is_there = tokio::select! {
                value = &mut ready => return WaitResult::Ready(value),
                read = self.reader.read(&mut buffer) => match read {
                    Ok(size) if size > 0 => self.process_input(&mut buffer[..size]).await,
                    _ => false,
                },
                _ = self.ping.tick() => self.send_ping().await,
                _ = self.check.tick() => self.login_check.is_valid(),
                () = self.login_check.changed() => self.login_check.is_valid(),
            };
            if !is_there {
                return WaitResult::Closed;
            }
        }
    }

    pub async fn send(&mut self, text: &str) -> io::Result<()> {
        let answers = self.answers.clone();
        let write = self.frame(Opcode::Text, text.as_bytes());
        answers.charge_message(text.len(), write).await
    }

    /// Sends a close frame.
    pub async fn close(mut self) {
        let code = match self.decoder.close_code() {
            Some(code) => code,
            None if self.login_check.is_valid() => CloseCode::NORMAL,
            None => CloseCode::POLICY_VIOLATION,
        };
        // If the client does not accept it, it has disconnected.
        let _ = timeout(CLOSE_WITHIN, async {
            self.frame(Opcode::Close, &code.0.to_be_bytes()).await?;
            self.writer.shutdown().await
        })
        .await;
    }

    async fn process_input(&mut self, bytes: &mut [u8]) -> bool {
        self.unanswered = 0;
        let is_over = self.decoder.decode(bytes).ended.is_some();
        if let Some(payload) = self.decoder.take_ping() {
            return !is_over && self.frame(Opcode::Pong, &payload).await.is_ok();
        }
        !is_over
    }

    async fn send_ping(&mut self) -> bool {
        self.unanswered += 1;
        self.unanswered <= 2 && self.frame(Opcode::Ping, &[]).await.is_ok()
    }

    /// The stall guard disconnects a client that does not read.
    async fn frame(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let (header, size) = frame_header(opcode, payload.len());
        self.writer.write_all(&header[..size]).await?;
        self.writer.write_all(payload).await?;
        self.writer.flush().await
    }
}
