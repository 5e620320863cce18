//! Sources: made, run, changed, deleted.
//!
//! A source of an MQTT connector takes messages in from the moment it is made, so it is made before anything uses the connector, and
//! run when there is a server to publish to.

use super::*;

impl Engine {
    pub fn sources(&self) -> Vec<SourceView> {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let sources = state.definitions.sources.values();
        sources.map(|definition| state.source_view(definition)).collect()
    }

    pub fn source(&self, id: &str) -> Result<SourceView, EngineError> {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let definition = state
            .definitions
            .sources
            .get(id)
            .ok_or_else(|| not_found("source", id))?;
        Ok(state.source_view(definition))
    }

    /// Makes or changes one.
    pub fn put_source(&self, mut definition: SourceDefinition) -> Result<SourceView, EngineError> {
        let _runtime = self.inner.runtime_handle.enter();
        let mut state = self.state();
        let mut changed = state.kept.clone();
        let id = definition.id();
        free("source", &id, &state.origins.sources)?;
        if let Some(old) = changed.sources.get(&id) {
            restore_secrets(&mut definition.parameters, &old.parameters);
        }
        let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
        if let Some(Err(problem)) = definition.publish.as_ref().map(republish) {
            problems.push(format!("publish.{problem}"));
        }
        room("sources", changed.sources.len(), &mut problems);
        let made = self.make(&state, &definition);
        let made = made.map_err(|wrong| problems.extend(wrong)).ok();
        changed.sources.insert(id, definition.clone());
        let result = valid(problems).and_then(|()| self.save(&mut state, changed));
        match (result, made) {
            (Ok(()), Some(made)) => self.replace_source(&mut state, &definition, made),
            (Ok(()), None) => {}
            (Err(error), made) => {
                made.into_iter().for_each(kinds::Origin::end);
                return Err(error);
            }
        }
        Ok(state.source_view(&definition))
    }

    /// A source that is not enabled subscribes to nothing and fetches nothing.
    pub fn enable_source(&self, id: &str, enable: bool) -> Result<SourceView, EngineError> {
        let definition = self.state().definitions.sources.get(id).cloned();
        let definition = definition.ok_or_else(|| not_found("source", id))?;
        self.put_source(SourceDefinition { enable, ..definition })
    }

    pub fn delete_source(&self, id: &str) -> Result<(), EngineError> {
        let mut state = self.state();
        free("source", id, &state.origins.sources)?;
        let mut changed = state.kept.clone();
        if changed.sources.remove(id).is_none() {
            return Err(not_found("source", id));
        }
        self.save(&mut state, changed)?;
        if let Some(origin) = self.stop_source(&mut state, id) {
            origin.end();
        }
        Ok(())
    }

    /// The new one is there before the old one ends, so that what both subscribe to stays subscribed.
    fn replace_source(&self, state: &mut State, definition: &SourceDefinition, made: kinds::Origin) {
        let old = self.stop_source(state, &definition.id());
        if definition.enable {
            self.hold_source(state, definition, Ok(made));
            self.run_source(state, definition);
        } else {
            made.end();
        }
        if let Some(old) = old {
            old.end();
        }
    }

    /// Takes messages in, if it is enabled, and does not hand them on yet.
    pub(super) fn make_source(&self, state: &mut State, definition: &SourceDefinition) {
        if definition.enable {
            let made = self.make(state, definition);
            self.hold_source(state, definition, made);
        }
    }

    fn make(&self, state: &State, definition: &SourceDefinition) -> Result<kinds::Origin, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        state.source(definition)
    }

    fn hold_source(&self, state: &mut State, definition: &SourceDefinition, made: Result<kinds::Origin, Problems>) {
        if let Err(problems) = &made {
            tracing::error!(source = %definition.id(), problems = %problems.join("; "), "a source cannot run");
        }
        let held = made.map(|origin| HeldSource { origin, run: None });
        state.sources.insert(definition.id(), held);
    }

    /// Hands on what it takes in, if there is a server.
    pub(super) fn run_source(&self, state: &mut State, definition: &SourceDefinition) {
        let Some(net) = self
            .inner
            .net
            .get()
            .filter(|_| self.inner.is_serving.load(Ordering::Acquire))
        else {
            return;
        };
        let metrics = state.source_metrics.entry(definition.id()).or_default().clone();
        let Some(Ok(held)) = state.sources.get_mut(&definition.id()) else {
            return;
        };
        match self.receiver(definition, net, metrics) {
            Ok(receiver) => {
                let source = held.origin.source.clone();
                let (stopper, stop) = connectors::stop();
                let runtime = &self.inner.runtime_handle;
                let task = runtime.spawn(async move { source.run(&receiver, stop).await });
                held.run = Some((stopper, task));
            }
            Err(problems) => self.hold_source(state, definition, Err(problems)),
        }
    }

    fn receiver(
        &self,
        definition: &SourceDefinition,
        net: &net::Handle,
        metrics: Arc<SourceMetrics>,
    ) -> Result<SourceReceiver, Problems> {
        let publish = definition.publish.as_ref().map(republish).transpose();
        let seed = unix_ms() ^ u64::from(std::process::id());
        Ok(SourceReceiver {
            names: definition.from_names(),
            scene: Scene {
                node: Text::from(self.inner.node.as_str()),
                unix_ms: 0,
            },
            publish: publish.map_err(|problem| vec![format!("publish.{problem}")])?,
            runner: Mutex::new(Runner::new(
                self.inner.in_force.clone(),
                Surroundings::new(seed, self.inner.values.clone()),
            )),
            metrics,
            progress: self.inner.progress.clone(),
            net: net.clone(),
        })
    }

    /// What it has not handed over is told to nobody as taken.
    pub(super) fn stop_source(&self, state: &mut State, id: &str) -> Option<kinds::Origin> {
        let held = state.sources.remove(id)?.ok()?;
        if let Some((stopper, task)) = held.run {
            stopper.stop();
            self.inner.runtime_handle.block_on(async {
                if tokio::time::timeout(STOP_WITHIN, task).await.is_err() {
                    tracing::warn!(source = id, "a source does not stop in time and is left to itself");
                }
            });
        }
        Some(held.origin)
    }
}
