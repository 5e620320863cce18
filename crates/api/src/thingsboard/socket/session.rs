//! One connection: commands in, answers and updates out.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use axum::http::HeaderMap;
use devices::{Update, Updates};
use platform::ids::{DeviceId, EntityType, Uuid};
use platform::model::{Alarm, Authority};
use tokio::io::ReadHalf;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use super::super::auth::person_of;
use super::super::call::{Call, Person};
use super::super::failure::Failure;
use super::super::world::World;
use super::commands::{Command, EntityDataCommand, Message};
use super::frames::{Heard, Reader, Stream, Writer};
use super::seats::Seat;
use super::subscription::{Entities, Frame, Subscription, failure, history_frame, no_notifications};
use crate::app::App;
use crate::problem::Problem;

/// Of one connection.
const SUBSCRIPTIONS_MAX: usize = 1000;
/// Entities that one connection watches.
const WATCHED_MAX: usize = 10_000;
/// Updates that wait for one connection.
const QUEUE: usize = 4096;
/// How long a connection may stay without logging in.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);
/// How often a client is asked whether it is there, and its token looked at. One that said nothing for two of these is gone.
const CHECK_EVERY: Duration = Duration::from_secs(20);
/// Counts are looked at as often.
const CHECKS_PER_COUNT: u32 = 3;

/// Between looks at what alarms change: those that changed meanwhile are looked at together.
const ALARMS_EVERY: Duration = Duration::from_secs(1);
/// Alarms that changed and wait to be looked at; beyond that everything is shown anew.
const ALARMS_MAX: usize = 1000;

const POLICY_VIOLATION: u16 = 1008;
const TRY_AGAIN_LATER: u16 = 1013;

pub struct Session {
    app: App,
    login: Option<(Person, String)>,
    seat: Seat,
    updates: Updates,
    subscriptions: HashMap<i64, Subscription>,
    watched: HashSet<Uuid>,
    /// As they are now; not looked at before `look_at`.
    changed_alarms: Vec<Alarm>,
    look_at: Instant,
}

/// Whether the connection goes on; the code with which it ends.
type Ended = Option<u16>;

impl Session {
    pub fn new(app: App, world: &World, login: Option<(Person, String)>, seat: Seat) -> Session {
        let updates = world.devices().subscribe(QUEUE);
        Session {
            app,
            login,
            seat,
            updates,
            subscriptions: HashMap::new(),
            watched: HashSet::new(),
            changed_alarms: Vec::new(),
            look_at: Instant::now(),
        }
    }

    pub async fn run(mut self, mut reader: Reader<ReadHalf<Stream>>, mut writer: Writer) {
        let mut check = interval(CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        check.reset();
        let login_by = Instant::now() + LOGIN_WITHIN;
        let (mut silent_checks, mut checks) = (0, 0_u32);
        let code = loop {
            let step = tokio::select! {
                heard = reader.next() => {
                    silent_checks = 0;
                    match heard {
                        Ok(heard) => self.hear(heard, &mut writer).await,
                        Err(_) => break 1000,
                    }
                }
                Some(update) = self.updates.next() => self.show(&update, &mut writer).await,
                _ = check.tick() => {
                    silent_checks += 1;
                    checks = checks.wrapping_add(1);
                    if silent_checks > 2 {
                        break POLICY_VIOLATION;
                    }
                    self.check(checks.is_multiple_of(CHECKS_PER_COUNT), &mut writer).await
                }
                () = sleep_until(self.look_at), if !self.changed_alarms.is_empty() => self.look_at_alarms(&mut writer).await,
                () = sleep_until(login_by), if self.login.is_none() => break POLICY_VIOLATION,
            };
            match step {
                Ok(None) => {}
                Ok(Some(code)) => break code,
                Err(_) => return,
            }
        };
        // A client that does not take it is gone.
        let _ = tokio::time::timeout(Duration::from_secs(1), writer.close(code)).await;
    }

    async fn hear(&mut self, heard: Heard, writer: &mut Writer) -> io::Result<Ended> {
        match heard {
            Heard::Ping(payload) => writer.pong(&payload).await?,
            Heard::Pong => {}
            Heard::Closed(code) => return Ok(Some(code)),
            Heard::Text(text) => return self.obey(&text, writer).await,
        }
        Ok(None)
    }

    fn sits(&mut self, person: &Person) -> bool {
        let world = self.app.world();
        let sockets = world.map(|world| world.sockets_of(person)).unwrap_or_default();
        self.seat.log_in(person, sockets)
    }

    async fn obey(&mut self, text: &str, writer: &mut Writer) -> io::Result<Ended> {
        let Ok(mut message) = Message::read(text) else {
            let frame = failure(0, false, &Failure::bad_request("Failed to parse the message"));
            writer.text(&frame.to_string()).await?;
            return Ok(None);
        };
        if let Some(auth) = message.auth_cmd.take() {
            match person_of(&self.app, auth.token.clone(), false).await {
                Ok(person) if !self.sits(&person) => return Ok(Some(TRY_AGAIN_LATER)),
                Ok(person) => {
                    // What another one was shown is not this one's.
                    if self.login.as_ref().is_some_and(|(before, _)| before.id != person.id) {
                        self.subscriptions.clear();
                        self.watch();
                    }
                    self.login = Some((person, auth.token));
                }
                Err(_) => return Ok(Some(POLICY_VIOLATION)),
            }
        }
        if self.login.is_none() {
            return Ok(Some(POLICY_VIOLATION));
        }
        for command in message.commands() {
            let frame = match command {
                Ok(command) => self.carry_out(command).await,
                Err((id, problem)) => Some(failure(id, false, &Failure::bad_request(problem))),
            };
            if let Some(frame) = frame {
                writer.text(&frame.to_string()).await?;
            }
        }
        Ok(None)
    }

    async fn carry_out(&mut self, command: Command) -> Option<Frame> {
        let (id, is_old) = match &command {
            Command::Telemetry(old) | Command::Attributes(old) | Command::History(old) => (old.cmd_id, true),
            Command::Entities(entities) => (entities.cmd_id, false),
            Command::EntityCount { id, .. } | Command::Alarms { id, .. } | Command::AlarmCount { id, .. } => {
                (*id, false)
            }
            Command::AlarmStatus(status) => (status.cmd_id, false),
            Command::Unsubscribe(id) | Command::Notifications { id, .. } => (*id, false),
            Command::Nothing => return None,
        };
        let is_end = match &command {
            Command::Telemetry(old) | Command::Attributes(old) => old.unsubscribe,
            Command::Unsubscribe(_) => true,
            _ => false,
        };
        if is_end {
            self.subscriptions.remove(&id);
            self.watch();
            return None;
        }
        if let Command::Notifications { is_count, .. } = command {
            return Some(no_notifications(id, is_count));
        }
        let is_of_screen = self.login.as_ref().is_some_and(|(person, _)| person.screen.is_some());
        let frame = match command {
            Command::Telemetry(_) | Command::Attributes(_) => self.subscribe(id, command).await,
            _ if is_of_screen => Err(Failure::permission()),
            _ => self.subscribe(id, command).await,
        };
        self.watch();
        Some(frame.unwrap_or_else(|problem| failure(id, is_old, &problem)))
    }

    /// Watches first and reads then: what changes in between comes as an update.
    async fn subscribe(&mut self, id: i64, command: Command) -> Result<Frame, Failure> {
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX && !self.subscriptions.contains_key(&id) {
            return Err(Failure::bad_request(format!(
                "More than {SUBSCRIPTIONS_MAX} subscriptions"
            )));
        }
        let old = self.subscriptions.remove(&id);
        if let Command::Entities(command) = command {
            return self.subscribe_entities(id, *command, old).await;
        }
        self.watch_ahead(&command)?;
        let call = self.call()?;
        let (subscription, frame) = in_turn(&self.app, call, move |call| make(call, id, command)).await??;
        if let Some(subscription) = subscription {
            self.subscriptions.insert(id, subscription);
        }
        Ok(frame)
    }

    async fn subscribe_entities(
        &mut self,
        id: i64,
        command: EntityDataCommand,
        old: Option<Subscription>,
    ) -> Result<Frame, Failure> {
        let mut entities = match (old, &command.query) {
            (Some(Subscription::Entities(known)), _) => known,
            (_, Some(query)) => Box::new(Entities::new(query.clone())),
            (_, None) => return Err(Failure::bad_request("The command has no query")),
        };
        let once = entities.change(command);
        let call = self.call()?;
        let found = in_turn(&self.app, call, move |call| entities.find(call).map(|()| entities));
        let mut entities = found.await??;
        for entity in entities.watched() {
            self.watch_one(entity)?;
        }
        let call = self.call()?;
        let read = in_turn(&self.app, call, move |call| {
            call.platform().settle();
            let frame = entities.frame(call, id, &once)?;
            Ok::<_, Failure>((entities, frame))
        });
        let (entities, frame) = read.await??;
        self.subscriptions.insert(id, Subscription::Entities(entities));
        Ok(frame)
    }

    fn watch_ahead(&mut self, command: &Command) -> Result<(), Failure> {
        let tenant = self.login.as_ref().map(|(person, _)| person.tenant.0);
        let entity = match command {
            Command::Telemetry(old) | Command::Attributes(old) => old.entity().map(|entity| entity.id),
            Command::Alarms { .. } | Command::AlarmCount { .. } => tenant,
            Command::AlarmStatus(status) => Some(status.originator_id.id),
            _ => None,
        };
        entity.map_or(Ok(()), |entity| self.watch_one(entity))
    }

    fn watch_one(&mut self, entity: Uuid) -> Result<(), Failure> {
        if self.watched.contains(&entity) {
            return Ok(());
        }
        if self.watched.len() >= WATCHED_MAX {
            return Err(Failure::bad_request(format!(
                "More than {WATCHED_MAX} entities are watched"
            )));
        }
        self.watched.insert(entity);
        self.updates.watch(entity);
        Ok(())
    }

    /// Exactly those that subscriptions show.
    fn watch(&mut self) {
        let wanted: HashSet<Uuid> = self.subscriptions.values().flat_map(Subscription::watched).collect();
        for gone in self.watched.difference(&wanted) {
            self.updates.unwatch(*gone);
        }
        for new in wanted.difference(&self.watched) {
            self.updates.watch(*new);
        }
        self.watched = wanted;
    }

    fn call(&self) -> Result<Call, Failure> {
        let (person, _) = self.login.as_ref().ok_or_else(Failure::unauthorized)?;
        Call::new(&self.app, person.clone(), &HeaderMap::new())
    }

    async fn show(&mut self, update: &Update, writer: &mut Writer) -> io::Result<Ended> {
        if self.updates.take_missed() > 0 {
            return self.show_all(writer).await;
        }
        if self.is_of_another_customer(update) {
            self.drop_what_may_not_be_seen(writer).await?;
            return Ok(None);
        }
        let shown = self.subscriptions.iter_mut();
        let frames: Vec<Frame> = shown
            .filter_map(|(id, subscription)| subscription.shows(*id, update))
            .collect();
        for frame in frames {
            writer.text(&frame.to_string()).await?;
        }
        if let Update::Alarm { alarm, .. } = update {
            let changed = &mut self.changed_alarms;
            if changed.len() <= ALARMS_MAX {
                changed.retain(|known| known.id != alarm.id);
                changed.push(alarm.as_ref().clone());
            }
        }
        Ok(None)
    }

    async fn look_at_alarms(&mut self, writer: &mut Writer) -> io::Result<Ended> {
        self.look_at = Instant::now() + ALARMS_EVERY;
        let changed = std::mem::take(&mut self.changed_alarms);
        if changed.len() > ALARMS_MAX {
            return self.show_all(writer).await;
        }
        self.look(changed, writer).await?;
        Ok(None)
    }

    /// Alarms that changed, and counts.
    async fn look(&mut self, alarms: Vec<Alarm>, writer: &mut Writer) -> io::Result<()> {
        let Ok(call) = self.call() else { return Ok(()) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let looked = in_turn(&self.app, call, move |call| {
            call.platform().settle();
            let mut frames = Vec::new();
            for (id, subscription) in &mut subscriptions {
                let frame = subscription.look(call, *id, &alarms);
                frames.extend(frame.unwrap_or_else(|problem| Some(failure(*id, false, &problem))));
            }
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = looked.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        for frame in frames {
            writer.text(&frame.to_string()).await?;
        }
        Ok(())
    }

    /// After updates were missed: everything as it is now.
    async fn show_all(&mut self, writer: &mut Writer) -> io::Result<Ended> {
        while self.updates.try_next().is_some() {}
        let Ok(call) = self.call() else { return Ok(None) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let read = in_turn(&self.app, call, move |call| {
            call.platform().settle();
            let frames: Vec<Frame> = subscriptions
                .iter_mut()
                .filter_map(|(id, subscription)| subscription.anew(call, *id).transpose())
                .filter_map(Result::ok)
                .collect();
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = read.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        for frame in frames {
            writer.text(&frame.to_string()).await?;
        }
        Ok(None)
    }

    /// The token may have expired, or its user be gone.
    async fn check(&mut self, is_counting: bool, writer: &mut Writer) -> io::Result<Ended> {
        if let Some((_, token)) = &self.login
            && person_of(&self.app, token.clone(), false).await.is_err()
        {
            return Ok(Some(POLICY_VIOLATION));
        }
        writer.ping().await?;
        self.drop_what_may_not_be_seen(writer).await?;
        if is_counting {
            self.look(Vec::new(), writer).await?;
        }
        Ok(None)
    }
}

impl Session {
    /// A device that was the customer's when it was asked for.
    fn is_of_another_customer(&self, update: &Update) -> bool {
        let (Some((person, _)), Some(entity), Some(world)) = (&self.login, update.entity(), self.app.world()) else {
            return false;
        };
        if person.authority != Authority::CustomerUser || person.screen.is_some() || entity.kind != EntityType::Device {
            return false;
        }
        let directory = world.platform().entities().directory();
        directory
            .device(DeviceId(entity.id))
            .is_none_or(|device| device.customer != person.customer)
    }

    /// What a customer watches may be another's by now. Of a tenant's administrators it is as before.
    async fn drop_what_may_not_be_seen(&mut self, writer: &mut Writer) -> io::Result<()> {
        let Some((person, _)) = &self.login else { return Ok(()) };
        let is_screen = person.screen.is_some();
        let is_admin = person.authority != Authority::CustomerUser && !is_screen;
        if self.subscriptions.is_empty() || is_admin {
            return Ok(());
        }
        let Ok(call) = self.call() else { return Ok(()) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let looked = in_turn(&self.app, call, move |call| {
            let mut frames = Vec::new();
            let forget = match is_screen {
                true => Subscription::forget_attributes,
                false => Subscription::forget_strangers,
            };
            subscriptions.retain(|id, subscription| match forget(subscription, call) {
                Ok(()) => true,
                Err(problem) => {
                    frames.push(failure(*id, subscription.is_old(), &problem));
                    false
                }
            });
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = looked.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        self.watch();
        for frame in frames {
            writer.text(&frame.to_string()).await?;
        }
        Ok(())
    }
}

fn make(call: &Call, id: i64, command: Command) -> Result<(Option<Subscription>, Frame), Failure> {
    call.platform().settle();
    let some = |(subscription, frame)| (Some(subscription), frame);
    Ok(match command {
        Command::Telemetry(command) => some(Subscription::telemetry(call, &command)?),
        Command::Attributes(command) => some(Subscription::attributes(call, &command)?),
        Command::History(command) => (None, history_frame(call, &command)?),
        Command::EntityCount { query, .. } => some(Subscription::entity_count(call, id, &query)?),
        Command::Alarms { query, .. } => some(Subscription::alarms(call, id, &query)?),
        Command::AlarmCount { query, .. } => some(Subscription::alarm_count(call, id, &query)?),
        Command::AlarmStatus(status) => some(Subscription::alarm_status(call, id, &status)?),
        Command::Entities(_) | Command::Unsubscribe(_) | Command::Notifications { .. } | Command::Nothing => {
            return Err(Failure::bad_request("The command makes no such subscription"));
        }
    })
}

async fn in_turn<R: Send + 'static>(
    app: &App,
    call: Call,
    work: impl FnOnce(&Call) -> R + Send + 'static,
) -> Result<R, Problem> {
    let turn = call.turn().await;
    let work = move || {
        let _turn = turn;
        work(&call)
    };
    app.block(work).await
}
