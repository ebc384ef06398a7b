"""One watched target: its canary, its server's metrics, its scheduled capacity runs."""

from dataclasses import replace
from functools import partial

import structlog

from probe.capacity.run.request import RunRequest, configured_run
from probe.config.config import Config
from probe.config.targets import TargetConfig
from probe.config.time_limits import capacity_limits
from probe.core.clock import Clock
from probe.core.errors import TargetError
from probe.core.reasons import REPLICAS_CHANGED
from probe.core.request import UNKNOWN_MODEL, Outcome, RequestRecord
from probe.core.result import CapacityResult
from probe.core.snapshot import UserLoad
from probe.core.target_status import TargetStatus, worst
from probe.core.workload import longest as longest_lengths
from probe.load.request_source import RequestSource
from probe.monitor.canary_kind import CanaryKind, OnDemandCanaries, failure_groups, newest, newest_failures, since
from probe.monitor.capacity_runs import CapacityRuns, RunHooks
from probe.monitor.capacity_workload import CapacityWorkload
from probe.monitor.live_forecast import LiveForecast
from probe.monitor.startup_flags import StartupFlags
from probe.monitor.target_context import MeasurementSink, TargetContext, new_admission_check, new_observer, new_scraper
from probe.monitor.wiring import lock
from probe.runtime.helper_process import Compute, run_in_helper

_log = structlog.get_logger()


class TargetMonitor:
    """Monitors one target. Its methods are the scheduled tasks; none raises an error of the server."""

    def __init__(
        self,
        config: Config,
        target: TargetConfig,
        clock: Clock,
        sink: MeasurementSink,
        context: TargetContext | None = None,
    ) -> None:
        context = context or TargetContext()
        context.state.history.keep_at_interval(target.scrape)
        self.config, self._config, self._clock, self._sink = target, config, clock, sink
        self.objectives = config.objectives_of(target)
        scraper = new_scraper(target, clock)
        self._observer = new_observer(target, self.objectives, clock, scraper=scraper, sink=sink, context=context)
        self._flags = StartupFlags(target, scraper, self._observer.set_max_num_seqs)
        self._kinds = tuple(CanaryKind(config, kind, clock, self._observer, self._record) for kind in target.kinds)
        for kind in self._kinds:
            kind.client.redactor = self._kinds[0].client.redactor
        self._first = first = target.kinds[0]  # the one of requests on demand and of capacity
        self._on_demand = OnDemandCanaries(config, first, self._kinds[0].client, clock)
        self._capacity_load = CapacityWorkload(config, first, context.state.lengths, self._flags)
        self._admission = new_admission_check(target, self.objectives, clock, context, self._capacity_load.lacking)
        hooks = RunHooks(
            request=self._run_request,
            lock=partial(lock, config, target, clock),
            on_lock=partial(self.set_other_prober, loading=False),  # no other prober has the lock
            on_record=self._record,
            on_load_end=context.on_load_end or self.forget_user_rates,
        )
        self._runs = CapacityRuns(target.name, clock, sink, self._observer, admission=self._admission, hooks=hooks)
        self._has_other_prober = False  # another prober loads the server
        self._forecast = LiveForecast(first, self._observer, self._capacity_load, self.objectives, clock)

    @property
    def model(self) -> str:
        """Return the served model, if it is known; for a passive target, from its metrics page."""
        models = self._observer.server.models if self._observer.server is not None else ()
        known = self._kinds[0].canary.model
        return models[0] if known == UNKNOWN_MODEL and models else known

    @property
    def canary_models(self) -> tuple[str, ...]:
        """Return the model of each kind of canary, in the configuration's order."""
        return tuple(kind.canary.model for kind in self._kinds)

    @property
    def valid_s(self) -> tuple[float, ...]:
        """Return for how long a canary of each kind shows whether the server is up, in seconds."""
        return tuple(kind.valid_s for kind in self._kinds)

    @property
    def capacity_workload(self) -> str:
        """Return the name of the workload that the capacity is for."""
        return self._capacity_load.configured.name

    @property
    def server(self) -> str:
        """Return the name of the target's lock: targets with the same lock share a server."""
        return self.config.server

    def forget_user_rates(self) -> None:
        """Note the end of a capacity run on the server, of this target or of another."""
        self._observer.state.forget_user_rates()

    def set_other_prober(self, *, loading: bool) -> None:
        """Note whether another prober loads the server. Until it ends the load of users is unknown."""
        if loading == self._has_other_prober:
            return
        self._has_other_prober = loading
        self._observer.set_other_prober(is_loading=loading)
        _log.info(
            "another prober loads the server" if loading else "another prober's load is over", target=self.config.name
        )
        if not loading:
            self.forget_user_rates()

    @property
    def is_measuring(self) -> bool:
        """Return whether a capacity run is under way, which has the server's lock."""
        return self._runs.is_running

    @property
    def last_result(self) -> CapacityResult | None:
        return self._runs.last_result

    async def send_canary(self, kind: int = 0) -> None:
        """Send a canary of a kind, by its place in the configuration, unless the server sleeps."""
        record = await self._kinds[kind].send()
        if record is None:
            return
        self._sink.record(record)
        if record.outcome is not Outcome.ABORTED:  # the server fell asleep meanwhile
            self._admission.add_canary(record, kind)

    async def on_demand(self, name: str | None) -> RequestRecord:
        """Send a request on demand. `name`: its workload; None: the canary's.

        Raise KeyError for a workload that is not configured, TargetError if the server sleeps.
        """
        load = self._on_demand.workload(name)
        if await self._observer.is_asleep():
            raise TargetError("the server sleeps; nothing was sent", Outcome.ABORTED)
        canary = self._on_demand.for_workload(load)
        async with self._observer.sending(load):
            record = await canary.run_once()
            self._record(record)
        return record

    def set_workloads(self, config: Config) -> None:
        """Take the workloads for requests on demand from a new configuration; the target's own parts are unchanged."""
        self._on_demand.set_workloads(config)

    def follow_replicas(self, pages: tuple[str, ...] | None) -> None:
        """Read the pages of these replicas from now on; a run under way ends where they are others than before."""
        if pages is not None and (changed := self._observer.follow_replicas(pages)):
            _log.info("the replicas behind the address have changed", target=self.config.name, changed=changed)
            self._runs.end(REPLICAS_CHANGED.word)

    def inhibit_load(self, why: str | None) -> None:
        """Let no capacity run begin and stop the one in progress; None: lift that."""
        self._runs.inhibit(why)

    @property
    def inhibited_by(self) -> str | None:
        """Return why no capacity run may begin; None: one may."""
        return self._runs.inhibited_by

    async def scrape(self) -> None:
        """Scrape the server's metrics."""
        await self._observer.scrape()

    async def scrape_gpus(self) -> None:
        """Scrape the GPUs' metrics."""
        await self._observer.scrape_gpus()

    async def capacity(self) -> bool:
        """Run a guarded capacity run; where it ended by itself far below the baseline, a second one at once.

        Return whether a drop still has to be confirmed by a later run.
        """
        await self._flags.update()
        return await self._runs.capacity()

    def give_up_run(self, detail: str) -> None:
        """Report that a capacity run could not begin in time."""
        self._runs.give_up(detail)

    async def forecast(self, compute: Compute = run_in_helper) -> float | None:
        """Forecast the capacity from live traffic, and that for what users send, and hand both to the sink.

        Return after how many seconds to try again, with twice the evidence; None if the capacity was found.
        """
        await self._flags.update()
        settings, correct = self._flags.target.capacity, self._sink.corrected
        result, next_s = await self._forecast.update(self.model, settings, correct, compute)
        self._sink.forecast(result)
        for_users = await self._forecast.update_for_users(self.model, settings, correct, compute)
        if for_users is not None:
            self._sink.forecast_for_users(for_users)
        return next_s

    def restore(self, result: CapacityResult) -> None:
        """Take a result as the last one, such as one from before a restart."""
        self._runs.restore(result)
        self._capacity_load.restore(result)

    def _record(self, record: RequestRecord) -> None:
        self._observer.add_record(record)
        self._sink.record(record)

    def _run_request(self, confirms: str | None) -> tuple[RunRequest, RequestSource]:
        run = configured_run(self._flags.target.kinds[0], self.objectives, self._config.load)
        request = replace(run, confirms=confirms)
        load = self._capacity_load.current() or self._capacity_load.configured  # admission requires that it is known
        source = RequestSource(  # the same lengths in every run; prompts are new
            self._kinds[0].endpoint,
            self.model,
            load,
            capacity_limits(self._config, self._first, longest_lengths(load)[1]),
            aliases=self._kinds[0].canary.aliases,
        )
        return request, source

    @property
    def users(self) -> UserLoad | None:
        """Return the load of users over the last minutes; None if unknown."""
        return self._observer.users

    def status(self) -> TargetStatus:
        """Return the target's status for pages and terminals."""
        canaries = [kind.status() for kind in self._kinds]
        up = worst(each.up for each in canaries)
        return TargetStatus(
            name=self.config.name,
            passive=self.config.passive,
            base_url=self.config.base_url,
            model=self.model,
            objectives=self.objectives,
            up=up,
            canaries=canaries,
            recent=newest(self._kinds),
            failures=newest_failures(self._kinds),
            failure_groups=failure_groups(self._kinds),
            since=since(canaries, is_up=up),
            trouble=canaries[0].trouble if len(canaries) == 1 else None,
            server=self._observer.server,
            last_server=self._observer.last_server,
            last_checks=self._observer.last_checks,
            server_error=self._observer.error,
            asleep_since_s=self._observer.asleep_since_s,
            gpus=self._observer.gpus,
            gpu_error=self._observer.gpu_error,
            checks=self._observer.checks,
            users=self.users,
            capacity=self._runs.last_result,
            forecast=self._forecast.last_result,
            for_users=self._forecast.for_users,
            measured=self._runs.known,
            run=self._runs.progress,
            capacity_state="running" if self._runs.is_running else self._runs.refusal,
        )

    async def stop_run(self, why: str) -> None:
        """Stop the capacity run in progress, and wait until its result has been reported."""
        await self._runs.stop(why)

    async def close(self) -> None:
        """Close the connections."""
        self.set_other_prober(loading=False)
        for kind in self._kinds:
            await kind.close()
        await self._observer.close()
