//! Decodes device messages and encodes responses: topics, JSON and Protobuf bodies, and value types. The formats are
//! identical to ThingsBoard's, byte by byte. This module uses no devices and no stores.

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
pub use error::PayloadDecodeError;
pub use gateway::{GatewayAttributesRequest, GatewayConnect, GatewayPart, GatewayRpcResponse, gateway_parts};
pub use protobuf::{
    GatewayKind, PayloadKind, ProfileTransport, protobuf_attribute_response, protobuf_attribute_update,
    protobuf_gateway_attribute_response, protobuf_gateway_attribute_update, protobuf_gateway_rpc_request,
    protobuf_provision, protobuf_provisioned, protobuf_rpc_response,
};
pub use request::{AttributesRequest, Claim, Provision, Provisioned, RpcRequest};
pub use telemetry::{TS_MAX_MS, Telemetry};
pub use topic::{DeviceSubscription, Downlink, OtaKind, PayloadFormat, TopicForm, Uplink};
pub use values::{DecodeLimits, KeyValue, attributes};
