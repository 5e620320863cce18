//! Establishes an MQTT connection, up to CONNACK.

use std::time::Duration;

use mqtt::{
    ConnAck, Connect, Decoded, Packet, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode, decode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::config::MqttConnectorConfig;
use super::outgoing::{BrokerLimits, LoopMark};
use crate::stream::{ConnectorStream, DialOptions};

/// A connection that the broker has accepted.
pub(super) struct Connected {
    pub stream: ConnectorStream,
    /// Bytes that are read and not decoded yet.
    pub input: Vec<u8>,
    pub is_session_present: bool,
    pub limits: BrokerLimits,
    pub keep_alive: Duration,
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

/// Connects and performs the CONNECT handshake.
pub(super) async fn connect_mqtt(
    config: &MqttConnectorConfig,
    dialing: &DialOptions,
    bridge_mark: BridgeMark<'_>,
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
    let connected = timeout(limit, handshake(config, stream, bridge_mark)).await;
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
) -> Result<Connected, NotConnected> {
    let server = &config.server;
    let lost = |error: std::io::Error| NotConnected {
        reason: format!("{server} closed the connection before CONNACK: {error}"),
        may_reject_bridge_flag: bridge_mark.is_bridge,
    };
    let mut out = Vec::new();
    put_connect(config, bridge_mark.is_bridge, &mut out);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let version = ProtocolVersion::from(config.version);
    let mut input = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut input).await.map_err(lost)? == 0 {
            return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let invalid = |text: String| NotConnected {
            reason: format!("{server} does not speak MQTT {version}: {text}"),
            may_reject_bridge_flag: false,
        };
        let (connected, size) = match decode(&input, version, config.packet_bytes_max as usize) {
            Ok(Decoded::Incomplete { .. }) => continue,
            Ok(Decoded::Complete {
                packet: Packet::ConnAck(connack),
                size,
            }) => (accepted(config, &connack, bridge_mark)?, size),
            Ok(Decoded::Complete { packet, .. }) => {
                return Err(invalid(format!("expected CONNACK, received {}", packet.packet_type())));
            }
            Err(error) => return Err(invalid(error.to_string())),
        };
        let (is_session_present, limits, keep_alive) = connected;
        input.drain(..size);
        return Ok(Connected {
            stream,
            input,
            is_session_present,
            limits,
            keep_alive,
        });
    }
}

fn put_connect(config: &MqttConnectorConfig, is_bridge: bool, out: &mut Vec<u8>) {
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
    Packet::Connect(connect).encode(version, out);
}

fn accepted(
    config: &MqttConnectorConfig,
    connack: &ConnAck<'_>,
    bridge_mark: BridgeMark<'_>,
) -> Result<(bool, BrokerLimits, Duration), NotConnected> {
    if connack.reason != ReasonCode::Success {
        let detail = connack.properties.reason_string().map(|text| format!(": {text}"));
        return Err(NotConnected {
            reason: format!(
                "{} refused the connection: {}{}",
                config.server,
                connack.reason.name(),
                detail.unwrap_or_default()
            ),
            may_reject_bridge_flag: bridge_mark.is_bridge && connack.reason == ReasonCode::UnsupportedProtocolVersion,
        });
    }
    let properties = &connack.properties;
    let version = ProtocolVersion::from(config.version);
    let limits = BrokerLimits {
        version,
        window: config
            .in_flight_max
            .min(properties.receive_maximum().unwrap_or(u16::MAX)),
        maximum_qos: properties
            .maximum_qos()
            .and_then(QoS::from_bits)
            .unwrap_or(QoS::ExactlyOnce),
        is_retain_available: properties.retain_available().unwrap_or(true),
        packet_bytes_max: properties
            .maximum_packet_size()
            .map_or(268_435_455, |bytes| bytes as usize),
        loop_mark: config.loop_protection.then(|| bridge_mark.mark.clone()),
    };
    let keep_alive = properties.server_keep_alive().unwrap_or(config.keep_alive_s);
    Ok((connack.session_present, limits, Duration::from_secs(keep_alive.into())))
}
