"""Simulated traffic with known truth, and scores of reports against it."""

from wirelag.sim.distributions import Distribution, parse_distribution
from wirelag.sim.scenario import Scenario
from wirelag.sim.simulation import Capture, Simulation, simulate

__all__ = ["Capture", "Distribution", "Scenario", "Simulation", "parse_distribution", "simulate"]
