//! RPC requests to devices, and responses to RPC requests of devices.

use std::sync::Arc;

use super::{NodeOutcome, NodePosition};
use crate::chain::host::{Host, NodeError, RpcCall};
use crate::chain::message::{ChainMessage, plain};
use crate::decode::compact;
use crate::ids::EntityType;

/// Sends an RPC request. The message continues when the device has responded.
pub fn call<'a>(
    timeout_s: u64,
    at: NodePosition<'_>,
    message: &ChainMessage<'a>,
    host: &mut dyn Host,
) -> Result<NodeOutcome<'a>, NodeError> {
    if message.originator.kind != EntityType::Device {
        return Err(NodeError::new("Message originator is not a device entity!"));
    }
    let json = message.json();
    let method = json
        .get("method")
        .ok_or_else(|| NodeError::new("Method is not present in the message!"))?;
    let params = json
        .get("params")
        .ok_or_else(|| NodeError::new("Params are not present in the message!"))?;
    let text = |name: &str| message.metadata.get(name).filter(|text| !text.is_empty());
    let timeout_ms = i64::try_from(timeout_s.saturating_mul(1000)).unwrap_or(i64::MAX);
    let expires_ms = text("expirationTime").and_then(|text| text.parse().ok());
    let call = RpcCall {
        method: plain(method),
        // A string that contains JSON is sent as JSON.
        params: match params.as_str() {
            Some(text) if serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok() => compact(text),
            _ => params.to_string(),
        },
        is_one_way: text("oneway") == Some("true"),
        is_persistent: text("persistent") == Some("true"),
        expires_ms: expires_ms.unwrap_or_else(|| host.now_ms().saturating_add(timeout_ms)),
        retries: text("retries").and_then(|text| text.parse().ok()),
        additional_info: json.get("additionalInfo").filter(|info| !info.is_null()).map(plain),
        request_uuid: text("requestUUID").map(str::to_owned),
    };
    host.call_device(message.originator, call, at.continuation(message))?;
    Ok(NodeOutcome::Done)
}

#[derive(Debug)]
pub struct ReplyNode {
    /// Metadata key of the request id.
    pub request_id: String,
}

impl ReplyNode {
    pub fn process<'a>(
        &self,
        message: Arc<ChainMessage<'a>>,
        host: &mut dyn Host,
    ) -> Result<NodeOutcome<'a>, NodeError> {
        if message.originator.kind != EntityType::Device {
            return Err(NodeError::new("Message originator is not a device entity!"));
        }
        let id = message.metadata.get(&self.request_id).filter(|text| !text.is_empty());
        let id = id.ok_or_else(|| NodeError::new("Request id is not present in the metadata!"))?;
        let id = id
            .parse()
            .map_err(|_| NodeError::new(format!("request id {id:?} is not a number")))?;
        host.reply_to_device(message.originator, id, &message.json())?;
        Ok(NodeOutcome::success(message))
    }
}
