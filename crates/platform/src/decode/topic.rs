//! Topics of the device interface: what a device publishes to and may subscribe to, long (`v1/…`) and short (`v2/…`) names.

/// Which names a device uses; answers go where the question came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// `v1/devices/me/…`.
    Long,
    /// `v2/…`, with the format in the topic or that of the profile.
    Short(Format),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// What the device profile says.
    Profile,
    Json,
    Protobuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OtaKind {
    Firmware,
    Software,
}

/// What a device says by the topic that it publishes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uplink {
    Telemetry(Form),
    Attributes(Form),
    AttributesRequest {
        form: Form,
        id: i32,
    },
    /// The answer to a call of the server.
    RpcResponse {
        form: Form,
        id: i32,
    },
    /// A call to the server.
    RpcRequest {
        form: Form,
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
    /// `None`: no topic of the device interface.
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
    let form = Form::Long;
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
        "t" => return Some(Uplink::Telemetry(Form::Short(Format::Profile))),
        "t/j" => return Some(Uplink::Telemetry(Form::Short(Format::Json))),
        "t/p" => return Some(Uplink::Telemetry(Form::Short(Format::Protobuf))),
        "a" => return Some(Uplink::Attributes(Form::Short(Format::Profile))),
        "a/j" => return Some(Uplink::Attributes(Form::Short(Format::Json))),
        "a/p" => return Some(Uplink::Attributes(Form::Short(Format::Protobuf))),
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

fn short_id(rest: &str) -> Option<(Form, i32)> {
    let (format, id) = match rest.split_once('/') {
        None => (Format::Profile, rest),
        Some(("j", id)) => (Format::Json, id),
        Some(("p", id)) => (Format::Protobuf, id),
        Some(_) => return None,
    };
    Some((Form::Short(format), number(id)?))
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

/// What a device may subscribe to; other filters are refused with 0x80.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Subscription {
    Attributes(Form),
    AttributesResponse(Form),
    RpcRequest(Form),
    RpcResponse(Form),
    Provision,
    Chunks(OtaKind),
    ChunkErrors(OtaKind),
    GatewayAttributes,
    GatewayAttributesResponse,
    GatewayRpc,
    GatewayDisconnect,
}

const PROFILE: Form = Form::Short(Format::Profile);
const JSON: Form = Form::Short(Format::Json);
const PROTOBUF: Form = Form::Short(Format::Protobuf);

const SUBSCRIPTIONS: &[(&str, Subscription)] = &[
    ("v1/devices/me/attributes", Subscription::Attributes(Form::Long)),
    (
        "v1/devices/me/attributes/response/+",
        Subscription::AttributesResponse(Form::Long),
    ),
    ("v1/devices/me/rpc/request/+", Subscription::RpcRequest(Form::Long)),
    ("v1/devices/me/rpc/response/+", Subscription::RpcResponse(Form::Long)),
    ("v2/a", Subscription::Attributes(PROFILE)),
    ("v2/a/j", Subscription::Attributes(JSON)),
    ("v2/a/p", Subscription::Attributes(PROTOBUF)),
    ("v2/a/res/+", Subscription::AttributesResponse(PROFILE)),
    ("v2/a/res/j/+", Subscription::AttributesResponse(JSON)),
    ("v2/a/res/p/+", Subscription::AttributesResponse(PROTOBUF)),
    ("v2/r/req/+", Subscription::RpcRequest(PROFILE)),
    ("v2/r/req/j/+", Subscription::RpcRequest(JSON)),
    ("v2/r/req/p/+", Subscription::RpcRequest(PROTOBUF)),
    ("v2/r/res/+", Subscription::RpcResponse(PROFILE)),
    ("v2/r/res/j/+", Subscription::RpcResponse(JSON)),
    ("v2/r/res/p/+", Subscription::RpcResponse(PROTOBUF)),
    ("/provision/response", Subscription::Provision),
    ("v2/fw/response/+/chunk/+", Subscription::Chunks(OtaKind::Firmware)),
    ("v2/sw/response/+/chunk/+", Subscription::Chunks(OtaKind::Software)),
    ("v2/fw/error", Subscription::ChunkErrors(OtaKind::Firmware)),
    ("v2/sw/error", Subscription::ChunkErrors(OtaKind::Software)),
    ("v1/gateway/attributes", Subscription::GatewayAttributes),
    (
        "v1/gateway/attributes/response",
        Subscription::GatewayAttributesResponse,
    ),
    ("v1/gateway/rpc", Subscription::GatewayRpc),
    ("v1/gateway/disconnect", Subscription::GatewayDisconnect),
];

impl Subscription {
    pub fn parse(filter: &str) -> Option<Subscription> {
        let mut all = SUBSCRIPTIONS.iter();
        all.find(|(text, _)| *text == filter)
            .map(|(_, subscription)| *subscription)
    }
}

/// Where a message to a device goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Downlink {
    Attributes(Form),
    AttributesResponse { form: Form, id: i32 },
    RpcRequest { form: Form, id: i32 },
    RpcResponse { form: Form, id: i32 },
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
            Downlink::Attributes(Form::Long) => "v1/devices/me/attributes".to_owned(),
            Downlink::Attributes(Form::Short(format)) => format!("v2/a{}", ["", "/j", "/p"][format as usize]),
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
    /// The number of the call that is sent to this topic of a device.
    pub fn rpc_number(topic: &str) -> Option<i32> {
        let beginnings = ["v1/devices/me/rpc/request/", "v2/r/req/j/", "v2/r/req/p/", "v2/r/req/"];
        let rest = beginnings
            .into_iter()
            .find_map(|beginning| topic.strip_prefix(beginning));
        rest?.parse().ok()
    }
}

fn with_id(long: &str, short: &str, form: Form, id: i32) -> String {
    match form {
        Form::Long => format!("{long}{id}"),
        Form::Short(format) => format!("{short}{}{id}", ["", "j/", "p/"][format as usize]),
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
    fn topics_of_devices() {
        let cases = [
            ("v1/devices/me/telemetry", Some(Uplink::Telemetry(Form::Long))),
            ("v1/devices/me/attributes", Some(Uplink::Attributes(Form::Long))),
            (
                "v1/devices/me/attributes/request/7",
                Some(Uplink::AttributesRequest {
                    form: Form::Long,
                    id: 7,
                }),
            ),
            (
                "v1/devices/me/rpc/response/7",
                Some(Uplink::RpcResponse {
                    form: Form::Long,
                    id: 7,
                }),
            ),
            (
                "v1/devices/me/rpc/request/7",
                Some(Uplink::RpcRequest {
                    form: Form::Long,
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
    fn answers_go_to_topics_that_a_device_may_subscribe_to() {
        let forms = [Form::Long, PROFILE, JSON, PROTOBUF];
        for form in forms {
            for downlink in [
                Downlink::AttributesResponse { form, id: 42 },
                Downlink::RpcRequest { form, id: 42 },
                Downlink::RpcResponse { form, id: 42 },
                Downlink::Attributes(form),
            ] {
                let filter = downlink.topic().replace("42", "+");
                assert!(Subscription::parse(&filter).is_some(), "{filter}");
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
        assert_eq!(Subscription::parse("v1/devices/me/#"), None);
    }
}
