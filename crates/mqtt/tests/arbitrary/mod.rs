//! Generates random well-formed packets, as owned values that packets borrow from.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tidewire_mqtt::{
    Ack, Auth, ConnAck, Connect, Disconnect, Packet, PacketId, PacketType, Properties, Property, PropertyContext,
    PropertyWriter, ProtocolVersion, Publish, QoS, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFilter,
    SubscribeFilters, SubscriptionOptions, UnsubAck, Unsubscribe, UnsubscribeFilters, Will,
};

/// A packet type with all values that a packet of this type may need.
#[derive(Clone, Debug)]
pub struct Seed {
    pub version: ProtocolVersion,
    packet_type: u8,
    packet_id: u16,
    flags: [bool; 4],
    qos: QoS,
    number: u16,
    text: [String; 3],
    topic: String,
    payload: Vec<u8>,
    optional: (Option<String>, Option<Vec<u8>>),
    filters: Vec<(String, SubscriptionOptions)>,
    reasons: Vec<usize>,
    properties: Vec<OwnedProperty>,
    will_properties: Vec<OwnedProperty>,
}

/// The identifier selects the property, the other fields are its value.
#[derive(Clone, Debug)]
struct OwnedProperty {
    kind: usize,
    number: u32,
    text: String,
    more: String,
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![4 => "[a-z0-9/]{0,12}", 2 => "[^\0]{0,8}", 1 => "[a-z]{120,140}"]
}

fn topic() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z0-9/$]{1,40}", "[^\0+#]{1,12}"]
}

fn qos() -> impl Strategy<Value = QoS> {
    prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)]
}

fn options() -> impl Strategy<Value = SubscriptionOptions> {
    let handling = prop_oneof![
        Just(RetainHandling::SendAtSubscribe),
        Just(RetainHandling::SendIfNew),
        Just(RetainHandling::DoNotSend)
    ];
    (qos(), any::<bool>(), any::<bool>(), handling).prop_map(
        |(maximum_qos, no_local, retain_as_published, retain_handling)| SubscriptionOptions {
            maximum_qos,
            no_local,
            retain_as_published,
            retain_handling,
        },
    )
}

fn property() -> impl Strategy<Value = OwnedProperty> {
    let number = prop_oneof![any::<u32>(), 0..3u32];
    (0..27usize, number, topic(), text()).prop_map(|(kind, number, text, more)| OwnedProperty {
        kind,
        number,
        text,
        more,
    })
}

pub fn seed() -> impl Strategy<Value = Seed> {
    let version = prop::sample::select(&ProtocolVersion::ALL[..]);
    let head = (version, 1..=15u8, 1..=u16::MAX, any::<[bool; 4]>(), qos(), any::<u16>());
    let body = ([text(), text(), text()], topic(), vec(any::<u8>(), 0..300));
    let optional = (option::of(text()), option::of(vec(any::<u8>(), 0..20)));
    let lists = (
        vec((text(), options()), 1..5),
        vec(any::<usize>(), 1..5),
        vec(property(), 0..6),
        vec(property(), 0..6),
    );
    (head, body, optional, lists).prop_map(|(head, body, optional, lists)| {
        let (version, packet_type, packet_id, flags, qos, number) = head;
        let (text, topic, payload) = body;
        let (filters, reasons, properties, will_properties) = lists;
        Seed {
            version,
            packet_type,
            packet_id,
            flags,
            qos,
            number,
            text,
            topic,
            payload,
            optional,
            filters,
            reasons,
            properties,
            will_properties,
        }
    })
}

impl OwnedProperty {
    fn get(&self) -> Property<'_> {
        let (number, text, bit) = (self.number, &*self.text, self.number & 1 == 1);
        match self.kind {
            0 => Property::PayloadFormatIndicator(bit.into()),
            1 => Property::MessageExpiryInterval(number),
            2 => Property::ContentType(text),
            3 => Property::ResponseTopic(text),
            4 => Property::CorrelationData(self.more.as_bytes()),
            5 => Property::SubscriptionIdentifier(number % 268_435_455 + 1),
            6 => Property::SessionExpiryInterval(number),
            7 => Property::AssignedClientIdentifier(text),
            8 => Property::ServerKeepAlive(number as u16),
            9 => Property::AuthenticationMethod(text),
            10 => Property::AuthenticationData(self.more.as_bytes()),
            11 => Property::RequestProblemInformation(bit),
            12 => Property::WillDelayInterval(number),
            13 => Property::RequestResponseInformation(bit),
            14 => Property::ResponseInformation(&self.more),
            15 => Property::ServerReference(&self.more),
            16 => Property::ReasonString(&self.more),
            17 => Property::ReceiveMaximum((number as u16).max(1)),
            18 => Property::TopicAliasMaximum(number as u16),
            19 => Property::TopicAlias((number as u16).max(1)),
            20 => Property::MaximumQoS(bit.into()),
            21 => Property::RetainAvailable(bit),
            22 => Property::UserProperty(text, &self.more),
            23 => Property::MaximumPacketSize(number.max(1)),
            24 => Property::WildcardSubscriptionAvailable(bit),
            25 => Property::SubscriptionIdentifierAvailable(bit),
            _ => Property::SharedSubscriptionAvailable(bit),
        }
    }
}

/// Writes the properties of the list that the context accepts, and the properties that it requires.
fn write<'b>(list: &[OwnedProperty], context: PropertyContext, out: &'b mut Vec<u8>) -> Properties<'b> {
    if context == PropertyContext::Auth {
        PropertyWriter::new(out).put(Property::AuthenticationMethod("SCRAM"));
    }
    for property in list {
        let length = out.len();
        PropertyWriter::new(out).put(property.get());
        if Properties::parse(out, context).is_err() {
            out.truncate(length);
        }
    }
    Properties::parse(out, context).expect("rejected properties have been removed")
}

/// Buffers that a packet borrows from, in addition to its seed.
#[derive(Default)]
pub struct Buffers {
    properties: Vec<u8>,
    will_properties: Vec<u8>,
    filters: Vec<u8>,
    reasons: Vec<u8>,
}

impl Seed {
    /// Returns the packet, or `None` for AUTH before MQTT 5.0.
    pub fn packet<'b>(&'b self, buffers: &'b mut Buffers) -> Option<Packet<'b>> {
        let packet_type = PacketType::from_bits(self.packet_type).expect("1 to 15");
        let packet_id = self.packet_id();
        let is_5 = self.version == ProtocolVersion::V5;
        let Buffers {
            properties,
            will_properties,
            filters,
            reasons,
        } = buffers;
        let write_for = move |context| {
            let properties = properties;
            if is_5 {
                write(&self.properties, context, properties)
            } else {
                Properties::EMPTY
            }
        };
        Some(match packet_type {
            PacketType::Connect => Packet::Connect(self.connect(write_for(PropertyContext::Connect), will_properties)),
            PacketType::ConnAck => {
                let reason = self.reason(packet_type);
                let session_present =
                    self.flags[0] && reason == ReasonCode::Success && self.version != ProtocolVersion::V3_1;
                Packet::ConnAck(ConnAck {
                    session_present,
                    reason,
                    properties: write_for(PropertyContext::ConnAck),
                })
            }
            PacketType::Publish => Packet::Publish(self.publish(write_for(PropertyContext::Publish))),
            PacketType::PubAck => Packet::PubAck(self.ack(packet_type, write_for(PropertyContext::Ack))),
            PacketType::PubRec => Packet::PubRec(self.ack(packet_type, write_for(PropertyContext::Ack))),
            PacketType::PubRel => Packet::PubRel(self.ack(packet_type, write_for(PropertyContext::Ack))),
            PacketType::PubComp => Packet::PubComp(self.ack(packet_type, write_for(PropertyContext::Ack))),
            PacketType::Subscribe => {
                let properties = write_for(PropertyContext::Subscribe);
                let list = self.filters.iter().map(|(filter, options)| SubscribeFilter {
                    filter,
                    options: *options,
                });
                let filters = SubscribeFilters::encode(list, self.version, filters);
                Packet::Subscribe(Subscribe {
                    packet_id,
                    properties,
                    filters,
                })
            }
            PacketType::Unsubscribe => {
                let properties = write_for(PropertyContext::Unsubscribe);
                let filters = UnsubscribeFilters::encode(self.filters.iter().map(|(filter, _)| &**filter), filters);
                Packet::Unsubscribe(Unsubscribe {
                    packet_id,
                    properties,
                    filters,
                })
            }
            PacketType::SubAck => {
                *reasons = self.reasons(packet_type);
                Packet::SubAck(SubAck {
                    packet_id,
                    properties: write_for(PropertyContext::Ack),
                    reasons,
                })
            }
            PacketType::UnsubAck => {
                *reasons = if is_5 { self.reasons(packet_type) } else { Vec::new() };
                Packet::UnsubAck(UnsubAck {
                    packet_id,
                    properties: write_for(PropertyContext::Ack),
                    reasons,
                })
            }
            PacketType::PingReq => Packet::PingReq,
            PacketType::PingResp => Packet::PingResp,
            PacketType::Disconnect if !is_5 => Packet::Disconnect(Disconnect {
                reason: ReasonCode::Success,
                properties: Properties::EMPTY,
            }),
            PacketType::Disconnect => {
                let properties = write_for(PropertyContext::Disconnect);
                Packet::Disconnect(Disconnect {
                    reason: self.reason(packet_type),
                    properties,
                })
            }
            PacketType::Auth if !is_5 => return None,
            PacketType::Auth => {
                let properties = write_for(PropertyContext::Auth);
                Packet::Auth(Auth {
                    reason: self.reason(packet_type),
                    properties,
                })
            }
        })
    }

    fn packet_id(&self) -> PacketId {
        PacketId::new(self.packet_id).expect("1 to 65535")
    }

    fn connect<'b>(&'b self, properties: Properties<'b>, will_properties: &'b mut Vec<u8>) -> Connect<'b> {
        let [clean_start, has_will, retain, is_bridge] = self.flags;
        let is_5 = self.version == ProtocolVersion::V5;
        let will_properties = match is_5 {
            true => write(&self.will_properties, PropertyContext::Will, will_properties),
            false => Properties::EMPTY,
        };
        let payload = &self.payload;
        let will = Will {
            qos: self.qos,
            retain,
            properties: will_properties,
            topic: &self.topic,
            payload,
        };
        let user_name = self.optional.0.as_deref();
        Connect {
            version: self.version,
            clean_start,
            is_bridge: is_bridge && !is_5,
            keep_alive: self.number,
            properties,
            client_id: &self.text[0],
            will: has_will.then_some(will),
            user_name,
            password: self.optional.1.as_deref().filter(|_| is_5 || user_name.is_some()),
        }
    }

    fn publish<'b>(&'b self, properties: Properties<'b>) -> Publish<'b> {
        let [dup, retain, is_alias, _] = self.flags;
        let has_id = self.qos != QoS::AtMostOnce;
        Publish {
            dup: dup && has_id,
            qos: self.qos,
            retain,
            topic: if is_alias && properties.topic_alias().is_some() {
                ""
            } else {
                &self.topic
            },
            packet_id: if has_id { PacketId::new(self.packet_id) } else { None },
            properties,
            payload: &self.payload,
        }
    }

    fn ack<'b>(&'b self, packet_type: PacketType, properties: Properties<'b>) -> Ack<'b> {
        let reason = match self.version {
            ProtocolVersion::V5 => self.reason(packet_type),
            _ => ReasonCode::Success,
        };
        Ack {
            packet_id: self.packet_id(),
            reason,
            properties,
        }
    }

    /// Returns the reason codes that the packet may have in this version.
    fn allowed(&self, packet_type: PacketType) -> Vec<ReasonCode> {
        let allowed = |reason: &&ReasonCode| match (self.version, packet_type) {
            (ProtocolVersion::V5, _) => reason.is_allowed_in(packet_type),
            (_, PacketType::ConnAck) => reason.to_connect_return_code().to_reason_code() == **reason,
            _ => matches!(reason.to_u8(), 0..=2 | 0x80),
        };
        ReasonCode::ALL.iter().filter(allowed).copied().collect()
    }

    fn reason(&self, packet_type: PacketType) -> ReasonCode {
        let allowed = self.allowed(packet_type);
        allowed[self.reasons[0] % allowed.len()]
    }

    fn reasons(&self, packet_type: PacketType) -> Vec<u8> {
        let allowed = self.allowed(packet_type);
        self.reasons
            .iter()
            .map(|index| allowed[index % allowed.len()].to_u8())
            .collect()
    }
}
