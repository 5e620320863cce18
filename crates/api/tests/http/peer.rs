//! An MQTT client on a blocking socket, with the packets of the codec.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroU16;
use std::time::Duration;

use mqtt::{
    Connect, Decoded, Packet, PacketId, Properties, Property, PropertyWriter, ProtocolVersion, Publish, QoS,
    ReasonCode, RetainHandling, Subscribe, SubscribeFilter, SubscribeFilters, SubscriptionOptions, Will,
};

/// A transport of MQTT.
pub trait Wire: Read + Write + Send {}

impl<S: Read + Write + Send> Wire for S {}

pub struct Peer {
    stream: Box<dyn Wire>,
    bytes: Vec<u8>,
    next_id: u16,
}

/// A PUBLISH with owned data.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    pub topic: String,
    pub payload: Vec<u8>,
    pub properties: Vec<u8>,
    pub qos: QoS,
    pub retain: bool,
}

impl Peer {
    #[track_caller]
    pub fn connect(address: SocketAddr, client_id: &str, login: Option<(&str, &str)>) -> Peer {
        let (peer, reason) = Peer::try_connect(address, client_id, login);
        assert_eq!(reason, ReasonCode::Success);
        peer
    }

    pub fn try_connect(address: SocketAddr, client_id: &str, login: Option<(&str, &str)>) -> (Peer, ReasonCode) {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Peer::over(Box::new(stream), client_id, login)
    }

    #[track_caller]
    pub fn with_will(address: SocketAddr, client_id: &str, will: Will<'_>) -> Peer {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let (peer, reason) = Peer::log_in(Box::new(stream), client_id, None, Some(will));
        assert_eq!(reason, ReasonCode::Success);
        peer
    }

    /// Uses an existing connection.
    pub fn over(stream: Box<dyn Wire>, client_id: &str, login: Option<(&str, &str)>) -> (Peer, ReasonCode) {
        Peer::log_in(stream, client_id, login, None)
    }

    fn log_in(
        stream: Box<dyn Wire>,
        client_id: &str,
        login: Option<(&str, &str)>,
        will: Option<Will<'_>>,
    ) -> (Peer, ReasonCode) {
        let mut peer = Peer {
            stream,
            bytes: Vec::new(),
            next_id: 1,
        };
        let mut bytes = Vec::new();
        let mut writer = PropertyWriter::new(&mut bytes);
        // The session outlives its connection.
        writer.put(Property::SessionExpiryInterval(1000));
        writer.put(Property::UserProperty("plant", "north"));
        peer.send(&Packet::Connect(Connect {
            version: ProtocolVersion::V5,
            clean_start: true,
            is_bridge: false,
            keep_alive: 0,
            properties: writer.finish(),
            client_id,
            will,
            user_name: login.map(|(name, _)| name),
            password: login.map(|(_, password)| password.as_bytes()),
        }));
        let reason = peer.read(|packet| match packet {
            Packet::ConnAck(connack) => connack.reason,
            other => panic!("{other:?}"),
        });
        (peer, reason)
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.encode(ProtocolVersion::V5, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    fn id(&mut self) -> PacketId {
        self.next_id += 1;
        PacketId(NonZeroU16::new(self.next_id).unwrap())
    }

    /// Passes the next packet to `take`.
    fn read<R>(&mut self, take: impl FnOnce(&Packet<'_>) -> R) -> R {
        loop {
            if let Decoded::Complete { packet, size } =
                mqtt::decode(&self.bytes, ProtocolVersion::V5, usize::MAX).unwrap()
            {
                let result = take(&packet);
                self.bytes.drain(..size);
                return result;
            }
            let mut buffer = [0; 4096];
            let count = self.stream.read(&mut buffer).unwrap();
            assert!(count > 0, "the server closed the connection");
            self.bytes.extend_from_slice(&buffer[..count]);
        }
    }

    #[track_caller]
    pub fn subscribe(&mut self, filter: &str, maximum_qos: QoS) {
        assert_eq!(self.try_subscribe(filter, maximum_qos), maximum_qos as u8);
    }

    pub fn try_subscribe(&mut self, filter: &str, maximum_qos: QoS) -> u8 {
        let options = SubscriptionOptions {
            maximum_qos,
            retain_handling: RetainHandling::SendAtSubscribe,
            ..Default::default()
        };
        let (mut bytes, packet_id) = (Vec::new(), self.id());
        let filters = SubscribeFilters::encode([SubscribeFilter { filter, options }], ProtocolVersion::V5, &mut bytes);
        self.send(&Packet::Subscribe(Subscribe {
            packet_id,
            properties: Properties::EMPTY,
            filters,
        }));
        self.read(|packet| match packet {
            Packet::SubAck(suback) => suback.reasons[0],
            other => panic!("{other:?}"),
        })
    }

    pub fn publish(&mut self, topic: &str, payload: &[u8], retain: bool) {
        self.send(&Packet::Publish(Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain,
            topic,
            packet_id: None,
            properties: Properties::EMPTY,
            payload,
        }));
    }

    /// Publishes with QoS 1 and returns the reason code of PUBACK.
    pub fn publish_acknowledged(&mut self, topic: &str, payload: &[u8], retain: bool) -> ReasonCode {
        let packet_id = Some(self.id());
        let (dup, qos, properties) = (false, QoS::AtLeastOnce, Properties::EMPTY);
        self.send(&Packet::Publish(Publish {
            dup,
            qos,
            retain,
            topic,
            packet_id,
            properties,
            payload,
        }));
        self.read(|packet| match packet {
            Packet::PubAck(ack) => ack.reason,
            other => panic!("{other:?}"),
        })
    }

    pub fn receive(&mut self) -> Message {
        self.read(|packet| match packet {
            Packet::Publish(publish) => Message {
                topic: publish.topic.to_owned(),
                payload: publish.payload.to_vec(),
                properties: publish.properties.as_bytes().to_vec(),
                qos: publish.qos,
                retain: publish.retain,
            },
            other => panic!("{other:?}"),
        })
    }

    pub fn receive_disconnect(&mut self) -> ReasonCode {
        self.read(|packet| match packet {
            Packet::Disconnect(disconnect) => disconnect.reason,
            other => panic!("{other:?}"),
        })
    }

    /// Sends PINGREQ and waits for PINGRESP: the server has processed all earlier packets.
    pub fn ping(&mut self) {
        self.send(&Packet::PingReq);
        self.read(|packet| assert_eq!(*packet, Packet::PingResp));
    }
}
