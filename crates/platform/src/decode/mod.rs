//! What devices send and what they are answered: topics, JSON bodies, types of values, byte by byte as ThingsBoard has them.
//! Bytes in, values out; nothing here knows a device or a store.

mod answer;
mod compact;
mod error;
mod gateway;
mod number;
mod protobuf;
mod request;
mod telemetry;
mod topic;
mod values;

pub use answer::{
    attribute_response, attribute_update, gateway_attribute_response, gateway_attribute_update, gateway_disconnect,
    gateway_rpc_request, provision_failure, provision_not_found, provision_success, rpc_request,
};
pub use compact::compact;
pub use error::DecodeError;
pub use gateway::{GatewayAttributesRequest, GatewayConnect, GatewayPart, GatewayRpcResponse, gateway_parts};
pub use protobuf::{
    GatewayKind, PayloadKind, Transport, protobuf_attribute_response, protobuf_attribute_update,
    protobuf_gateway_attribute_response, protobuf_gateway_attribute_update, protobuf_gateway_rpc_request,
    protobuf_provision, protobuf_provisioned, protobuf_rpc_response,
};
pub use request::{AttributesRequest, Claim, Provision, Provisioned, RpcRequest};
pub use telemetry::{TS_MAX_MS, Telemetry};
pub use topic::{Downlink, Form, Format, OtaKind, Subscription, Uplink};
pub use values::{KeyValue, Limits, attributes};
