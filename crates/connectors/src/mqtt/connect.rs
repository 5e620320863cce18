//! From nothing to CONNACK.

use std::time::Duration;

use mqtt::{
    ConnAck, Connect, Decoded, Packet, Properties, Property, PropertyWriter, ProtocolVersion, QoS, ReasonCode, decode,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::config::MqttConnectorConfig;
use super::outgoing::{Limits, LoopMark};
use crate::stream::{Stream, connect};

/// A connection that the broker has accepted.
pub(super) struct Connected {
    pub stream: Stream,
    /// Read and not decoded yet.
    pub input: Vec<u8>,
    pub is_session_present: bool,
    pub limits: Limits,
    pub keep_alive: Duration,
}

/// Why there is none.
pub(super) struct NotConnected {
    pub reason: String,
    /// Perhaps the broker does not know the bridge bit.
    pub may_be_bridge_bit: bool,
}

/// Who we say we are.
#[derive(Clone, Copy)]
pub(super) struct Guise<'a> {
    /// With the bit that Mosquitto's bridges set.
    pub is_bridge: bool,
    /// What messages that go through here are marked with.
    pub mark: &'a LoopMark,
}

/// Connects and says CONNECT.
pub(super) async fn connect_mqtt(
    config: &MqttConnectorConfig,
    tls: Option<&std::sync::Arc<rustls::ClientConfig>>,
    guise: Guise<'_>,
) -> Result<Connected, NotConnected> {
    let limit = Duration::from_millis(config.connect_timeout_ms);
    let plainly = |reason| NotConnected {
        reason,
        may_be_bridge_bit: false,
    };
    let (host, port) = config
        .address()
        .ok_or_else(|| plainly("server: must be host:port".to_owned()))?;
    let stream = connect(host, port, tls, limit).await.map_err(plainly)?;
    let greeted = timeout(limit, greet(config, stream, guise)).await;
    greeted.unwrap_or_else(|_| {
        let reason = format!(
            "{} accepts connections, but does not answer CONNECT within {} ms",
            config.server,
            limit.as_millis()
        );
        Err(plainly(reason))
    })
}

async fn greet(config: &MqttConnectorConfig, mut stream: Stream, guise: Guise<'_>) -> Result<Connected, NotConnected> {
    let server = &config.server;
    let lost = |error: std::io::Error| NotConnected {
        reason: format!("{server} closed the connection instead of answering CONNECT: {error}"),
        may_be_bridge_bit: guise.is_bridge,
    };
    let mut out = Vec::new();
    put_connect(config, guise.is_bridge, &mut out);
    stream.write_all(&out).await.map_err(lost)?;
    stream.flush().await.map_err(lost)?;
    let version = ProtocolVersion::from(config.version);
    let mut input = Vec::with_capacity(4096);
    loop {
        if stream.read_buf(&mut input).await.map_err(lost)? == 0 {
            return Err(lost(std::io::ErrorKind::UnexpectedEof.into()));
        }
        let garbled = |text: String| NotConnected {
            reason: format!("{server} does not speak MQTT {version}: {text}"),
            may_be_bridge_bit: false,
        };
        let (connected, size) = match decode(&input, version, config.packet_bytes_max as usize) {
            Ok(Decoded::Incomplete { .. }) => continue,
            Ok(Decoded::Complete {
                packet: Packet::ConnAck(connack),
                size,
            }) => (accepted(config, &connack, guise)?, size),
            Ok(Decoded::Complete { packet, .. }) => {
                return Err(garbled(format!("it answers with {}", packet.packet_type())));
            }
            Err(error) => return Err(garbled(error.to_string())),
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
    guise: Guise<'_>,
) -> Result<(bool, Limits, Duration), NotConnected> {
    if connack.reason != ReasonCode::Success {
        let said = connack.properties.reason_string().map(|text| format!(": {text}"));
        return Err(NotConnected {
            reason: format!(
                "{} refuses us: {}{}",
                config.server,
                connack.reason.name(),
                said.unwrap_or_default()
            ),
            may_be_bridge_bit: guise.is_bridge && connack.reason == ReasonCode::UnsupportedProtocolVersion,
        });
    }
    let properties = &connack.properties;
    let version = ProtocolVersion::from(config.version);
    let limits = Limits {
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
        loop_mark: (config.loop_protection && version.has_properties()).then(|| guise.mark.clone()),
    };
    let keep_alive = properties.server_keep_alive().unwrap_or(config.keep_alive_s);
    Ok((connack.session_present, limits, Duration::from_secs(keep_alive.into())))
}
