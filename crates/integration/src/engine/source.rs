//! Sources: made, changed, deleted.

use super::*;

impl Engine {
    pub fn sources(&self) -> Vec<SourceView> {
        let state = self.state();
        let sources = state.definitions.sources.values();
        sources.map(|definition| state.source_view(definition)).collect()
    }

    pub fn source(&self, id: &str) -> Result<SourceView, EngineError> {
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
        let mut state = self.state();
        let mut changed = state.definitions.clone();
        let id = definition.id();
        if let Some(old) = changed.sources.get(&id) {
            restore_secrets(&mut definition.parameters, &old.parameters);
        }
        let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
        problems.extend(state.source(&definition).err().into_iter().flatten());
        if let Some(Err(problem)) = definition.publish.as_ref().map(republish) {
            problems.push(format!("publish.{problem}"));
        }
        room("sources", changed.sources.len(), &mut problems);
        valid(problems)?;
        changed.sources.insert(id.clone(), definition.clone());
        self.save(&mut state, changed)?;
        self.stop_source(&mut state, &id);
        self.start_source(&mut state, &definition);
        Ok(state.source_view(&definition))
    }

    pub fn delete_source(&self, id: &str) -> Result<(), EngineError> {
        let mut state = self.state();
        let mut changed = state.definitions.clone();
        if changed.sources.remove(id).is_none() {
            return Err(not_found("source", id));
        }
        self.save(&mut state, changed)?;
        self.stop_source(&mut state, id);
        Ok(())
    }

    pub(super) fn start_source(&self, state: &mut State, definition: &SourceDefinition) {
        let Some(net) = self.inner.net.get().filter(|_| definition.enable) else {
            return;
        };
        let running = self.run_source(state, definition, net);
        if let Err(problems) = &running {
            tracing::error!(source = %definition.id(), problems = %problems.join("; "), "a source cannot run");
        }
        state.sources.insert(definition.id(), running);
    }

    pub(super) fn run_source(
        &self,
        state: &State,
        definition: &SourceDefinition,
        net: &net::Handle,
    ) -> Result<RunningSource, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        let origin = state.source(definition)?;
        let publish = definition.publish.as_ref().map(republish).transpose();
        let seed = unix_ms() ^ u64::from(std::process::id());
        let receiver = SourceReceiver {
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
            progress: self.inner.progress.clone(),
            net: net.clone(),
        };
        let source = origin.source;
        let (stopper, stop) = connectors::stop();
        let task = self
            .inner
            .runtime_handle
            .spawn(async move { source.run(&receiver, stop).await });
        Ok(RunningSource {
            health: origin.health,
            stopper,
            task,
        })
    }

    /// What it has not handed over is told to nobody as taken.
    pub(super) fn stop_source(&self, state: &mut State, id: &str) {
        let Some(Ok(running)) = state.sources.remove(id) else {
            return;
        };
        running.stopper.stop();
        self.inner.runtime_handle.block_on(async {
            if tokio::time::timeout(STOP_WITHIN, running.task).await.is_err() {
                tracing::warn!(source = id, "a source does not stop in time and is left to itself");
            }
        });
    }
}
