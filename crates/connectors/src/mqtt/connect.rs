//! Establishes an MQTT connection, up to CONNACK.

use std::time::Instant;

use mqtt::{ConnAck, Connect, Decoded, Properties, Property, PropertyWriter, ProtocolVersion, ReasonCode, decode};
use mqtt_client::SessionEvent;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::config::MqttConnectorConfig;
use super::outgoing::{BrokerLimits, ConnectorSession};
use crate::loop_mark::LoopMark;
use crate::stream::{ConnectorStream, DialOptions};

/// A connection that the broker has accepted.
pub(super) struct Connected {
    pub stream: ConnectorStream,
    /// Bytes that are read and not decoded yet.
    pub input: Vec<u8>,
    pub is_session_present: bool,
    pub limits: BrokerLimits,
}

/// Why connecting failed.
pub(super) struct NotConnected {
    pub reason: String,
    /// The broker may not support the bridge flag.
    pub may_reject_bridge_flag: bool,
}

/// How the connection protects against message loops.
#[derive(Clone, Copy)]
pub(super) struct BridgeMark<'a> {
    /// Set the bridge flag of Mosquitto in CONNECT.
    pub is_bridge: bool,
    /// Marks of messages that pass through this connector.
    pub mark: &'a LoopMark,
}

/// Connects and performs the CONNECT handshake. `started` is the origin of the session's times.
pub(super) async fn connect_mqtt(
    config: &MqttConnectorConfig,
    dialing: &DialOptions,
    bridge_mark: BridgeMark<'_>,
    session: &mut ConnectorSession,
    started: Instant,
) -> Result<Connected, NotConnected> {
    let limit = dialing.limit;
    let failed = |reason| NotConnected {
        reason,
        may_reject_bridge_flag: false,
    };
    let (host, port) = config
        .address()
        .ok_or_else(|| failed("server: expected host:port".to_owned()))?;
    let stream = dialing.connect(host, port).await.map_err(failed)?;
    let connected = timeout(limit, handshake(config, stream, bridge_mark, session, started)).await;
    connected.unwrap_or_else(|_| {
        let reason = format!(
            "{} accepted the connection, but sent no CONNACK within {} ms",
            config.server,
            limit.as_millis()
        );
        Err(failed(reason))
    })
}

async fn handshake(
    config: &MqttConnectorConfig,
    mut stream: ConnectorStream,
    bridge_mark: BridgeMark<'_>,
    session: &mut ConnectorSession,
    started: Instant,
) -> Result<Connected, NotConnected> {
    let server = &config.server;
    let lost = |error: std::io::Error| NotConnected {
        reason: format!("{server} closed the connection before CONNACK: {error}"),
        may_reject_bridge_flag: bridge_mark.is_bridge,
    };
    let version = session.version();
    let invalid = |text: String| NotConnected {
        reason: format!("{server} does not speak MQTT {version}: {text}"),
        may_reject_bridge_flag: false,
    };
    let mut out = Vec::new();
    let now_ns = started.elapsed().as_nanos() as u64;
    put_connect(config, bridge_mark.is_bridge, session, now_ns, &mut out);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let mut input = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut input).await.map_err(lost)? == 0 {
            return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let (event, size) = match decode(&input, version, config.packet_bytes_max as usize) {
            Ok(Decoded::Incomplete { .. }) => continue,
            Ok(Decoded::Complete { packet, size }) => (session.handle(packet, &mut out), size),
            Err(error) => return Err(invalid(error.to_string())),
        };
        let is_session_present = match event {
            Ok(SessionEvent::Accepted(connack)) => connack.session_present,
            Ok(SessionEvent::Rejected(connack)) => return Err(rejected(server, &connack, bridge_mark)),
            Ok(_) => return Err(invalid("the first packet is not CONNACK".into())),
            Err(violation) => return Err(invalid(violation.to_string())),
        };
        input.drain(..size);
        return Ok(Connected {
            stream,
            input,
            is_session_present,
            limits: limits(config, session, bridge_mark),
        });
    }
}

fn put_connect(
    config: &MqttConnectorConfig,
    is_bridge: bool,
    session: &mut ConnectorSession,
    now_ns: u64,
    out: &mut Vec<u8>,
) {
    let version = ProtocolVersion::from(config.version);
    let mut properties = Vec::new();
    let mut writer = PropertyWriter::new(&mut properties);
    let properties = if version.has_properties() {
        writer
            .put(Property::SessionExpiryInterval(config.session_expiry_s))
            .put(Property::ReceiveMaximum(config.receive_max))
            .put(Property::MaximumPacketSize(config.packet_bytes_max));
        writer.finish()
    } else {
        Properties::EMPTY
    };
    let connect = Connect {
        version,
        clean_start: config.clean_start,
        is_bridge,
        keep_alive: config.keep_alive_s,
        properties,
        client_id: &config.client_id,
        will: None,
        user_name: config.user.as_deref(),
        password: config.password.as_ref().map(|password| password.expose().as_bytes()),
    };
    session.connect(connect, now_ns, out);
}

fn rejected(server: &str, connack: &ConnAck<'_>, bridge_mark: BridgeMark<'_>) -> NotConnected {
    let detail = connack.properties.reason_string().map(|text| format!(": {text}"));
    NotConnected {
        reason: format!(
            "{server} refused the connection: {}{}",
            connack.reason.name(),
            detail.unwrap_or_default()
        ),
        may_reject_bridge_flag: bridge_mark.is_bridge && connack.reason == ReasonCode::UnsupportedProtocolVersion,
    }
}

fn limits(config: &MqttConnectorConfig, session: &ConnectorSession, bridge_mark: BridgeMark<'_>) -> BrokerLimits {
    let server = session.limits();
    BrokerLimits {
        version: session.version(),
        window: config.in_flight_max.min(server.receive_maximum),
        maximum_qos: server.maximum_qos,
        is_retain_available: server.is_retain_available,
        packet_bytes_max: server.packet_bytes_max as usize,
        loop_mark: config.loop_protection.then(|| bridge_mark.mark.clone()),
    }
}
