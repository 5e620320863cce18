//! A call to a device that is kept until it has an end: what the server wants of it, how far that is, what the device said.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Entity, Row, or_default, row};
use crate::ids::{DeviceId, EntityType, RpcId, TenantId, Uuid};

/// How far a call is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RpcStatus {
    /// The device was not there.
    #[default]
    Queued,
    /// On its way; the device has not acknowledged it.
    Sent,
    /// The device has it. The end of a call that wants no answer.
    Delivered,
    /// Answered.
    Successful,
    /// The device has not acknowledged it in time; it is sent again.
    Timeout,
    /// Its time was over before its end.
    Expired,
    /// Sent as often as it may be, and never acknowledged.
    Failed,
    Deleted,
}

impl RpcStatus {
    pub const ALL: [RpcStatus; 8] = [
        RpcStatus::Queued,
        RpcStatus::Sent,
        RpcStatus::Delivered,
        RpcStatus::Successful,
        RpcStatus::Timeout,
        RpcStatus::Expired,
        RpcStatus::Failed,
        RpcStatus::Deleted,
    ];

    pub fn name(self) -> &'static str {
        match self {
            RpcStatus::Queued => "QUEUED",
            RpcStatus::Sent => "SENT",
            RpcStatus::Delivered => "DELIVERED",
            RpcStatus::Successful => "SUCCESSFUL",
            RpcStatus::Timeout => "TIMEOUT",
            RpcStatus::Expired => "EXPIRED",
            RpcStatus::Failed => "FAILED",
            RpcStatus::Deleted => "DELETED",
        }
    }

    pub fn parse(name: &str) -> Option<RpcStatus> {
        RpcStatus::ALL.into_iter().find(|status| status.name() == name)
    }

    /// The type of the message that a rule chain gets.
    pub fn message_type(self) -> &'static str {
        match self {
            RpcStatus::Queued => "RPC_QUEUED",
            RpcStatus::Sent => "RPC_SENT",
            RpcStatus::Delivered => "RPC_DELIVERED",
            RpcStatus::Successful => "RPC_SUCCESSFUL",
            RpcStatus::Timeout => "RPC_TIMEOUT",
            RpcStatus::Expired => "RPC_EXPIRED",
            RpcStatus::Failed => "RPC_FAILED",
            RpcStatus::Deleted => "RPC_DELETED",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Rpc {
    pub id: Option<RpcId>,
    #[serde(deserialize_with = "or_default")]
    pub created_time: i64,
    #[serde(deserialize_with = "or_default")]
    pub tenant_id: TenantId,
    #[serde(deserialize_with = "or_default")]
    pub device_id: DeviceId,
    #[serde(deserialize_with = "or_default")]
    pub expiration_time: i64,
    /// See [`Rpc::request`].
    pub request: Value,
    pub response: Value,
    #[serde(deserialize_with = "or_default")]
    pub status: RpcStatus,
    pub additional_info: Value,
}

/// What is called, and how often it may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcRequestBody {
    /// The number that the device answers with.
    pub number: i32,
    pub is_one_way: bool,
    pub method: String,
    /// JSON.
    pub params: String,
    pub retries: Option<u32>,
}

impl Rpc {
    /// As ThingsBoard has it, and the number with it.
    pub fn set_request(&mut self, body: &RpcRequestBody) {
        self.request = json!({
            "id": self.id.map(|id| id.0),
            "tenantId": self.tenant_id,
            "deviceId": self.device_id,
            "oneway": body.is_one_way,
            "expirationTime": self.expiration_time,
            "body": {"method": body.method, "params": body.params},
            "persisted": true,
            "retries": body.retries,
            "requestId": body.number,
        });
    }

    pub fn request_body(&self) -> Option<RpcRequestBody> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        Some(RpcRequestBody {
            number: i32::try_from(self.request["requestId"].as_i64()?).ok()?,
            is_one_way: self.request["oneway"].as_bool()?,
            method: text(&self.request["body"]["method"])?,
            params: text(&self.request["body"]["params"])?,
            retries: self.request["retries"]
                .as_u64()
                .and_then(|retries| retries.try_into().ok()),
        })
    }
}

impl Entity for Rpc {
    const KIND: EntityType = EntityType::Rpc;

    fn id(&self) -> Option<Uuid> {
        self.id.map(|id| id.0)
    }

    /// Only the server changes it.
    fn version(&self) -> Option<i64> {
        None
    }

    fn stamp(&mut self, id: Uuid, _version: i64) {
        self.id = Some(RpcId(id));
    }

    fn row(&self) -> Row {
        Row {
            parent: self.device_id.0,
            subtype: self.status.name().to_owned(),
            ..row(self.id(), self.tenant_id.0, "")
        }
    }
}
