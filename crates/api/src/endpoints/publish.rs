//! Publishing over HTTP: one message or many. All of a request is checked before anything of it is published.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use broker::{ServerMessage, Shard, ShardId};
use mqtt::QoS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::app::App;
use crate::body;
use crate::endpoint::Endpoint;
use crate::message_body::{MessageProperties, PayloadEncoding};
use crate::problem::{FieldError, Problem};

const BODY_MAX: usize = 2 * 1024 * 1024;
const BULK_BODY_MAX: usize = 8 * 1024 * 1024;
const BULK_MESSAGES_MAX: usize = 1000;
/// Messages handed to a shard in one go, so that its own connections do not wait long.
const MESSAGES_PER_VISIT: usize = 50;
/// What clients may use, too.
const TOPIC_LEVELS_MAX: usize = 128;

/// A message to publish.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// Topic name. `$SYS/` and `$share/` are not for messages.
    #[schemars(length(min = 1, max = 65535))]
    topic: String,
    #[serde(default)]
    payload: String,
    #[serde(default)]
    payload_encoding: PayloadEncoding,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    /// An empty payload with it deletes the retained message.
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    properties: MessageProperties,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessages {
    /// Published in this order, as far as they have the same topic.
    #[schemars(length(min = 1, max = 1000))]
    messages: Vec<NewMessage>,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
pub struct Published {
    /// Whether anyone is known to have subscribed.
    pub matched: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PublishedAll {
    /// In the order of the request.
    pub results: Vec<Published>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/publish", "publish", publish)
            .tag("Publish")
            .says(
                "Publish a message",
                "Access rules of MQTT clients do not apply; the login does.",
            )
            .takes::<NewMessage>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<Published>("It is on its way."),
        Endpoint::post("/api/v1/publish/bulk", "publish_bulk", bulk)
            .tag("Publish")
            .says(
                "Publish up to 1000 messages",
                "All are checked before the first is published; all that is wrong is reported.",
            )
            .takes::<NewMessages>(BULK_BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .returns::<PublishedAll>("They are on their way."),
    ]
}

async fn publish(State(app): State<App>, body::Json(new): body::Json<NewMessage>) -> Result<Json<Published>, Problem> {
    let message = check(new)?;
    let shard = message.shard(&app);
    let matched = app
        .on_shard(shard, move |shard, now| message.publish(shard, now))
        .await?;
    Ok(Json(Published { matched }))
}

async fn bulk(State(app): State<App>, body::Json(new): body::Json<NewMessages>) -> Result<Json<PublishedAll>, Problem> {
    if new.messages.is_empty() || new.messages.len() > BULK_MESSAGES_MAX {
        return Err(
            Problem::invalid("messages", "the number of messages is out of range").expected("1 to 1000 messages")
        );
    }
    let messages = check_all(new.messages)?;
    let mut results = vec![Published { matched: false }; messages.len()];
    let mut by_shard: Vec<Vec<(usize, Message)>> = (0..app.net().shards()).map(|_| Vec::new()).collect();
    for (index, message) in messages.into_iter().enumerate() {
        by_shard[usize::from(message.shard(&app).0)].push((index, message));
    }
    for (shard, mut messages) in by_shard.into_iter().enumerate() {
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(MESSAGES_PER_VISIT));
            let batch = std::mem::replace(&mut messages, rest);
            let visit = move |shard: &mut Shard, now| -> Vec<(usize, bool)> {
                batch
                    .iter()
                    .map(|(index, message)| (*index, message.publish(shard, now)))
                    .collect()
            };
            for (index, matched) in app.on_shard(ShardId(shard as u16), visit).await? {
                results[index].matched = matched;
            }
        }
    }
    Ok(Json(PublishedAll { results }))
}

/// Checked and decoded.
struct Message {
    topic: String,
    payload: Vec<u8>,
    properties: Vec<u8>,
    qos: QoS,
    retain: bool,
    message_expiry_s: Option<u32>,
}

impl Message {
    /// The same one for a topic each time, so that its messages stay in order.
    fn shard(&self, app: &App) -> ShardId {
        Shard::home(&self.topic, app.net().shards()).unwrap_or(ShardId(0))
    }

    fn publish(&self, shard: &mut Shard, now: broker::Now) -> bool {
        let message = ServerMessage {
            topic: &self.topic,
            payload: &self.payload,
            properties: &self.properties,
            qos: self.qos,
            retain: self.retain,
            expiry_s: self.message_expiry_s,
        };
        shard.publish_from_server(now, message)
    }
}

fn check(new: NewMessage) -> Result<Message, Problem> {
    let refuse = |detail: String| Problem::invalid("topic", detail).expected("a topic name");
    mqtt::validate_topic_name(&new.topic).map_err(|error| refuse(error.to_string()))?;
    if new.topic == "$SYS" || ["$SYS/", "$share/"].iter().any(|prefix| new.topic.starts_with(prefix)) {
        return Err(refuse("only the server publishes there".into()));
    }
    if mqtt::levels(&new.topic).count() > TOPIC_LEVELS_MAX {
        return Err(refuse(format!("it has more than {TOPIC_LEVELS_MAX} levels")));
    }
    Ok(Message {
        payload: new.payload_encoding.decode(new.payload)?,
        properties: new.properties.to_wire()?,
        qos: QoS::from_bits(new.qos).ok_or_else(|| Problem::invalid("qos", "out of range").expected("0, 1 or 2"))?,
        retain: new.retain,
        message_expiry_s: new.properties.message_expiry_interval,
        topic: new.topic,
    })
}

fn check_all(new: Vec<NewMessage>) -> Result<Vec<Message>, Problem> {
    let mut errors = Vec::new();
    let mut messages = Vec::with_capacity(new.len());
    for (index, new) in new.into_iter().enumerate() {
        match check(new) {
            Ok(message) => messages.push(message),
            Err(problem) => errors.push(FieldError {
                field: format!("messages[{index}].{}", problem.field.unwrap_or_default()),
                detail: problem.detail,
            }),
        }
    }
    if errors.is_empty() {
        return Ok(messages);
    }
    let detail = format!(
        "{} values of messages are not valid; nothing was published",
        errors.len()
    );
    let mut problem = Problem::invalid("messages", detail);
    problem.errors = errors;
    Err(problem)
}
