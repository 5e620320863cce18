//! Publishing over HTTP: one message or many. All of a request is checked before anything of it is published. At QoS 1 and 2 the answer
//! comes when all is kept that has to be, in the journal and in the buffers of actions, as PUBACK does.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use broker::{Now, ServerMessage, Shard, ShardId};
use mqtt::QoS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

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
/// How long a request waits until what it has published is kept.
const KEPT_WITHIN: Duration = Duration::from_secs(10);
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
                "Access rules of MQTT clients do not apply; the login does. At QoS 1 and 2 the answer comes when the message is kept \
                 wherever it has to be; 503 is for what cannot be kept now and has not been published, or is not kept in time.",
            )
            .takes::<NewMessage>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .returns::<Published>("It is on its way, and kept."),
        Endpoint::post("/api/v1/publish/bulk", "publish_bulk", bulk)
            .tag("Publish")
            .says(
                "Publish up to 1000 messages",
                "All are checked before the first is published; all that is wrong is reported. At QoS 1 and 2 the answer comes when they \
                 are kept wherever they have to be. With 503 some may have been published: the detail says how many.",
            )
            .takes::<NewMessages>(BULK_BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .returns::<PublishedAll>("They are on their way, and kept."),
    ]
}

async fn publish(State(app): State<App>, body::Json(new): body::Json<NewMessage>) -> Result<Json<Published>, Problem> {
    let message = check(new)?;
    let shard = message.shard(&app);
    let visit = app
        .on_shard(shard, move |shard, now| publish_all(shard, now, &[(0, message)]))
        .await?;
    let visit = visit.map_err(|topic| Problem::unavailable(no_room(&topic)))?;
    wait_until_kept(visit.kept).await?;
    let matched = visit.matched.into_iter().any(|(_, matched)| matched);
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
    let (mut published, mut kept) = (0, Vec::new());
    for (shard, mut messages) in by_shard.into_iter().enumerate() {
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(MESSAGES_PER_VISIT));
            let batch = std::mem::replace(&mut messages, rest);
            let visit = app
                .on_shard(ShardId(shard as u16), move |shard, now| publish_all(shard, now, &batch))
                .await?;
            let visit = visit.map_err(|topic| {
                let all = results.len();
                Problem::unavailable(format!(
                    "{}; {published} of {all} messages have been published",
                    no_room(&topic)
                ))
            })?;
            published += visit.matched.len();
            kept.extend(visit.kept);
            for (index, matched) in visit.matched {
                results[index].matched = matched;
            }
        }
    }
    wait_until_kept(kept).await?;
    Ok(Json(PublishedAll { results }))
}

/// What a shard has published.
struct Visit {
    /// By index in the request.
    matched: Vec<(usize, bool)>,
    /// Told when all of it is kept; none if nobody waits for any.
    kept: Option<oneshot::Receiver<()>>,
}

/// All of them, or none: the error is the topic of one that could not be kept now.
fn publish_all(shard: &mut Shard, now: Now, messages: &[(usize, Message)]) -> Result<Visit, String> {
    let waited_for = || messages.iter().filter(|(_, message)| message.qos != QoS::AtMostOnce);
    let must_be_kept = |message: &Message| message.retain || message.qos != QoS::AtMostOnce;
    let may_not =
        |(_, message): &&(usize, Message)| must_be_kept(message) && !shard.may_keep(now, &message.of_server());
    if let Some((_, message)) = messages.iter().find(may_not) {
        return Err(message.topic.clone());
    }
    let publish = |(index, message): &(usize, Message)| (*index, shard.publish_from_server(now, message.of_server()));
    let matched = messages.iter().map(publish).collect();
    let kept = waited_for().next().map(|_| {
        let (tell, kept) = oneshot::channel();
        // An error: the request has ended.
        shard.when_kept(Box::new(move || _ = tell.send(())));
        kept
    });
    Ok(Visit { matched, kept })
}

async fn wait_until_kept(kept: impl IntoIterator<Item = oneshot::Receiver<()>>) -> Result<(), Problem> {
    let deadline = Instant::now() + KEPT_WITHIN;
    for kept in kept {
        match timeout_at(deadline, kept).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                return Err(Problem::unavailable(
                    "published; the journal has failed or the server stops, and it may not be kept",
                ));
            }
            Err(_) => {
                let seconds = KEPT_WITHIN.as_secs();
                let detail =
                    format!("published, but not kept within {seconds} s: the disk or the target of an action is slow");
                return Err(Problem::unavailable(detail));
            }
        }
    }
    Ok(())
}

fn no_room(topic: &str) -> String {
    format!("topic {topic}: the server can keep no more now, its disk or the buffer of an action is full")
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

    fn of_server(&self) -> ServerMessage<'_> {
        ServerMessage {
            topic: &self.topic,
            payload: &self.payload,
            properties: &self.properties,
            qos: self.qos,
            retain: self.retain,
            expiry_s: self.message_expiry_s,
            mark: 0,
        }
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
