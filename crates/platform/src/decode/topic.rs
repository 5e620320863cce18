//! Topics of the device API: publish topics and subscriptions, with long (`v1/…`) and short (`v2/…`) names.

/// The topic names that a device uses. Responses use the names of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TopicForm {
    /// `v1/devices/me/…`.
    Long,
    /// `v2/…`. The format is given by the topic (`…/j`, `…/p`), or else by the device profile.
    Short(PayloadFormat),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PayloadFormat {
    /// The format of the device profile.
    Profile,
    Json,
    Protobuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OtaKind {
    Firmware,
    Software,
}

/// The meaning of a device's publish topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    Telemetry(TopicForm),
    Attributes(TopicForm),
    AttributesRequest {
        form: TopicForm,
        id: i32,
    },
    /// Response to an RPC request of the server.
    RpcResponse {
        form: TopicForm,
        id: i32,
    },
    /// RPC request to the server.
    RpcRequest {
        form: TopicForm,
        id: i32,
    },
    Claim,
    Chunk {
        kind: OtaKind,
        request: i32,
        chunk: i32,
    },
    Provision,
    GatewayConnect,
    GatewayDisconnect,
    GatewayTelemetry,
    GatewayAttributes,
    GatewayAttributesRequest,
    GatewayRpc,
    GatewayClaim,
}

impl Uplink {
    /// Returns `None` for a topic outside the device API.
    pub fn parse(topic: &str) -> Option<Uplink> {
        if let Some(rest) = topic.strip_prefix("v1/devices/me/") {
            return parse_long(rest);
        }
        if let Some(rest) = topic.strip_prefix("v2/") {
            return parse_short(rest);
        }
        if let Some(rest) = topic.strip_prefix("v1/gateway/") {
            return parse_gateway(rest);
        }
        (topic == "/provision/request").then_some(Uplink::Provision)
    }
}

fn parse_long(rest: &str) -> Option<Uplink> {
    let form = TopicForm::Long;
    match rest {
        "telemetry" => return Some(Uplink::Telemetry(form)),
        "attributes" => return Some(Uplink::Attributes(form)),
        "claim" => return Some(Uplink::Claim),
        _ => {}
    }
    if let Some(id) = rest.strip_prefix("attributes/request/") {
        return Some(Uplink::AttributesRequest { form, id: number(id)? });
    }
    if let Some(id) = rest.strip_prefix("rpc/response/") {
        return Some(Uplink::RpcResponse { form, id: number(id)? });
    }
    let id = rest.strip_prefix("rpc/request/")?;
    Some(Uplink::RpcRequest { form, id: number(id)? })
}

fn parse_short(rest: &str) -> Option<Uplink> {
    match rest {
        "t" => return Some(Uplink::Telemetry(TopicForm::Short(PayloadFormat::Profile))),
        "t/j" => return Some(Uplink::Telemetry(TopicForm::Short(PayloadFormat::Json))),
        "t/p" => return Some(Uplink::Telemetry(TopicForm::Short(PayloadFormat::Protobuf))),
        "a" => return Some(Uplink::Attributes(TopicForm::Short(PayloadFormat::Profile))),
        "a/j" => return Some(Uplink::Attributes(TopicForm::Short(PayloadFormat::Json))),
        "a/p" => return Some(Uplink::Attributes(TopicForm::Short(PayloadFormat::Protobuf))),
        _ => {}
    }
    if let Some(rest) = rest.strip_prefix("a/req/") {
        let (form, id) = short_id(rest)?;
        return Some(Uplink::AttributesRequest { form, id });
    }
    if let Some(rest) = rest.strip_prefix("r/res/") {
        let (form, id) = short_id(rest)?;
        return Some(Uplink::RpcResponse { form, id });
    }
    if let Some(rest) = rest.strip_prefix("r/req/") {
        let (form, id) = short_id(rest)?;
        return Some(Uplink::RpcRequest { form, id });
    }
    let (kind, rest) = match rest.split_once('/')? {
        ("fw", rest) => (OtaKind::Firmware, rest),
        ("sw", rest) => (OtaKind::Software, rest),
        _ => return None,
    };
    let (request, chunk) = rest.strip_prefix("request/")?.split_once("/chunk/")?;
    Some(Uplink::Chunk {
        kind,
        request: number(request)?,
        chunk: number(chunk)?,
    })
}

fn short_id(rest: &str) -> Option<(TopicForm, i32)> {
    let (format, id) = match rest.split_once('/') {
        None => (PayloadFormat::Profile, rest),
        Some(("j", id)) => (PayloadFormat::Json, id),
        Some(("p", id)) => (PayloadFormat::Protobuf, id),
        Some(_) => return None,
    };
    Some((TopicForm::Short(format), number(id)?))
}

fn number(text: &str) -> Option<i32> {
    text.parse().ok()
}

fn parse_gateway(rest: &str) -> Option<Uplink> {
    Some(match rest {
        "connect" => Uplink::GatewayConnect,
        "disconnect" => Uplink::GatewayDisconnect,
        "telemetry" => Uplink::GatewayTelemetry,
        "attributes" => Uplink::GatewayAttributes,
        "attributes/request" => Uplink::GatewayAttributesRequest,
        "rpc" => Uplink::GatewayRpc,
        "claim" => Uplink::GatewayClaim,
        _ => return None,
    })
}

/// Subscriptions of the device API. Other filters are rejected with 0x80.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceSubscription {
    Attributes(TopicForm),
    AttributesResponse(TopicForm),
    RpcRequest(TopicForm),
    RpcResponse(TopicForm),
    Provision,
    Chunks(OtaKind),
    ChunkErrors(OtaKind),
    GatewayAttributes,
    GatewayAttributesResponse,
    GatewayRpc,
    GatewayDisconnect,
}

const PROFILE: TopicForm = TopicForm::Short(PayloadFormat::Profile);
const JSON: TopicForm = TopicForm::Short(PayloadFormat::Json);
const PROTOBUF: TopicForm = TopicForm::Short(PayloadFormat::Protobuf);

const SUBSCRIPTIONS: &[(&str, DeviceSubscription)] = &[
    (
        "v1/devices/me/attributes",
        DeviceSubscription::Attributes(TopicForm::Long),
    ),
    (
        "v1/devices/me/attributes/response/+",
        DeviceSubscription::AttributesResponse(TopicForm::Long),
    ),
    (
        "v1/devices/me/rpc/request/+",
        DeviceSubscription::RpcRequest(TopicForm::Long),
    ),
    (
        "v1/devices/me/rpc/response/+",
        DeviceSubscription::RpcResponse(TopicForm::Long),
    ),
    ("v2/a", DeviceSubscription::Attributes(PROFILE)),
    ("v2/a/j", DeviceSubscription::Attributes(JSON)),
    ("v2/a/p", DeviceSubscription::Attributes(PROTOBUF)),
    ("v2/a/res/+", DeviceSubscription::AttributesResponse(PROFILE)),
    ("v2/a/res/j/+", DeviceSubscription::AttributesResponse(JSON)),
    ("v2/a/res/p/+", DeviceSubscription::AttributesResponse(PROTOBUF)),
    ("v2/r/req/+", DeviceSubscription::RpcRequest(PROFILE)),
    ("v2/r/req/j/+", DeviceSubscription::RpcRequest(JSON)),
    ("v2/r/req/p/+", DeviceSubscription::RpcRequest(PROTOBUF)),
    ("v2/r/res/+", DeviceSubscription::RpcResponse(PROFILE)),
    ("v2/r/res/j/+", DeviceSubscription::RpcResponse(JSON)),
    ("v2/r/res/p/+", DeviceSubscription::RpcResponse(PROTOBUF)),
    ("/provision/response", DeviceSubscription::Provision),
    (
        "v2/fw/response/+/chunk/+",
        DeviceSubscription::Chunks(OtaKind::Firmware),
    ),
    (
        "v2/sw/response/+/chunk/+",
        DeviceSubscription::Chunks(OtaKind::Software),
    ),
    ("v2/fw/error", DeviceSubscription::ChunkErrors(OtaKind::Firmware)),
    ("v2/sw/error", DeviceSubscription::ChunkErrors(OtaKind::Software)),
    ("v1/gateway/attributes", DeviceSubscription::GatewayAttributes),
    (
        "v1/gateway/attributes/response",
        DeviceSubscription::GatewayAttributesResponse,
    ),
    ("v1/gateway/rpc", DeviceSubscription::GatewayRpc),
    ("v1/gateway/disconnect", DeviceSubscription::GatewayDisconnect),
];

impl DeviceSubscription {
    pub fn parse(filter: &str) -> Option<DeviceSubscription> {
        let mut all = SUBSCRIPTIONS.iter();
        all.find(|(text, _)| *text == filter)
            .map(|(_, subscription)| *subscription)
    }
}

/// The topic of a message to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downlink {
    Attributes(TopicForm),
    AttributesResponse { form: TopicForm, id: i32 },
    RpcRequest { form: TopicForm, id: i32 },
    RpcResponse { form: TopicForm, id: i32 },
    Provision,
    Chunk { kind: OtaKind, request: i32, chunk: i32 },
    ChunkError(OtaKind),
    GatewayAttributes,
    GatewayAttributesResponse,
    GatewayRpc,
    GatewayDisconnect,
}

impl Downlink {
    pub fn topic(self) -> String {
        match self {
            Downlink::Attributes(TopicForm::Long) => "v1/devices/me/attributes".to_owned(),
            Downlink::Attributes(TopicForm::Short(format)) => format!("v2/a{}", ["", "/j", "/p"][format as usize]),
            Downlink::AttributesResponse { form, id } => {
                with_id("v1/devices/me/attributes/response/", "v2/a/res/", form, id)
            }
            Downlink::RpcRequest { form, id } => with_id("v1/devices/me/rpc/request/", "v2/r/req/", form, id),
            Downlink::RpcResponse { form, id } => with_id("v1/devices/me/rpc/response/", "v2/r/res/", form, id),
            Downlink::Provision => "/provision/response".to_owned(),
            Downlink::Chunk { kind, request, chunk } => {
                format!("v2/{}/response/{request}/chunk/{chunk}", kind.prefix())
            }
            Downlink::ChunkError(kind) => format!("v2/{}/error", kind.prefix()),
            Downlink::GatewayAttributes => "v1/gateway/attributes".to_owned(),
            Downlink::GatewayAttributesResponse => "v1/gateway/attributes/response".to_owned(),
            Downlink::GatewayRpc => "v1/gateway/rpc".to_owned(),
            Downlink::GatewayDisconnect => "v1/gateway/disconnect".to_owned(),
        }
    }
}

impl Downlink {
    /// The request number in the topic of an RPC request to a device.
    pub fn rpc_number(topic: &str) -> Option<i32> {
        let beginnings = ["v1/devices/me/rpc/request/", "v2/r/req/j/", "v2/r/req/p/", "v2/r/req/"];
        let rest = beginnings
            .into_iter()
            .find_map(|beginning| topic.strip_prefix(beginning));
        rest?.parse().ok()
    }
}

fn with_id(long: &str, short: &str, form: TopicForm, id: i32) -> String {
    match form {
        TopicForm::Long => format!("{long}{id}"),
        TopicForm::Short(format) => format!("{short}{}{id}", ["", "j/", "p/"][format as usize]),
    }
}

impl OtaKind {
    pub fn prefix(self) -> &'static str {
        match self {
            OtaKind::Firmware => "fw",
            OtaKind::Software => "sw",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_topics_are_parsed() {
        let cases = [
            ("v1/devices/me/telemetry", Some(Uplink::Telemetry(TopicForm::Long))),
            ("v1/devices/me/attributes", Some(Uplink::Attributes(TopicForm::Long))),
            (
                "v1/devices/me/attributes/request/7",
                Some(Uplink::AttributesRequest {
                    form: TopicForm::Long,
                    id: 7,
                }),
            ),
            (
                "v1/devices/me/rpc/response/7",
                Some(Uplink::RpcResponse {
                    form: TopicForm::Long,
                    id: 7,
                }),
            ),
            (
                "v1/devices/me/rpc/request/7",
                Some(Uplink::RpcRequest {
                    form: TopicForm::Long,
                    id: 7,
                }),
            ),
            ("v1/devices/me/claim", Some(Uplink::Claim)),
            ("v2/t", Some(Uplink::Telemetry(PROFILE))),
            ("v2/t/j", Some(Uplink::Telemetry(JSON))),
            ("v2/a/p", Some(Uplink::Attributes(PROTOBUF))),
            ("v2/a/req/5", Some(Uplink::AttributesRequest { form: PROFILE, id: 5 })),
            ("v2/a/req/j/5", Some(Uplink::AttributesRequest { form: JSON, id: 5 })),
            ("v2/r/res/p/5", Some(Uplink::RpcResponse { form: PROTOBUF, id: 5 })),
            ("v2/r/req/5", Some(Uplink::RpcRequest { form: PROFILE, id: 5 })),
            (
                "v2/fw/request/1/chunk/0",
                Some(Uplink::Chunk {
                    kind: OtaKind::Firmware,
                    request: 1,
                    chunk: 0,
                }),
            ),
            ("/provision/request", Some(Uplink::Provision)),
            ("v1/gateway/connect", Some(Uplink::GatewayConnect)),
            ("v1/gateway/telemetry", Some(Uplink::GatewayTelemetry)),
            ("v1/gateway/attributes/request", Some(Uplink::GatewayAttributesRequest)),
            ("v1/devices/me", None),
            ("v1/devices/me/rpc/request/x", None),
            ("v2/a/req/x/5", None),
            ("v1/devices/me/telemetry/", None),
            ("provision/request", None),
            ("other", None),
        ];
        for (topic, uplink) in cases {
            assert_eq!(Uplink::parse(topic), uplink, "{topic}");
        }
    }

    #[test]
    fn response_topics_match_allowed_subscriptions() {
        let forms = [TopicForm::Long, PROFILE, JSON, PROTOBUF];
        for form in forms {
            for downlink in [
                Downlink::AttributesResponse { form, id: 42 },
                Downlink::RpcRequest { form, id: 42 },
                Downlink::RpcResponse { form, id: 42 },
                Downlink::Attributes(form),
            ] {
                let filter = downlink.topic().replace("42", "+");
                assert!(DeviceSubscription::parse(&filter).is_some(), "{filter}");
            }
        }
        assert_eq!(
            Downlink::Chunk {
                kind: OtaKind::Software,
                request: 1,
                chunk: 2
            }
            .topic(),
            "v2/sw/response/1/chunk/2"
        );
        assert_eq!(DeviceSubscription::parse("v1/devices/me/#"), None);
    }
}
