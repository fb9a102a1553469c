// Executors: every index once, workers in range and never shared, and no work of others taken in
// while waiting; and those of a host that keep no such promise.
#include "fovea/executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "fovea/attention.h"
#include "support/random_problem.h"

#ifdef FOVEA_TEST_TBB
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include "fovea/tbb.h"
#endif

namespace fovea {
namespace {

// What one ForEach did.
struct Record {
  std::vector<std::atomic<int>> seen;
  std::vector<std::atomic<int>> busy;
  std::atomic<int> shared{0};
  std::atomic<int> out_of_range{0};
  int workers;

  Record(int64_t tasks, int n)
      : seen(static_cast<size_t>(tasks)), busy(static_cast<size_t>(n)), workers(n) {}

  static void Task(void* context, int64_t index, int worker) {
    Record& self = *static_cast<Record*>(context);
    if (worker < 0 || worker >= self.workers || index < 0 ||
        index >= static_cast<int64_t>(self.seen.size())) {
      ++self.out_of_range;
      return;
    }
    if (self.busy[static_cast<size_t>(worker)].exchange(1) != 0) ++self.shared;
    ++self.seen[static_cast<size_t>(index)];
    // Long enough for a second task to come upon the same worker.
    if (index % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
    self.busy[static_cast<size_t>(worker)].store(0);
  }
};

void ExpectEveryIndexOnce(Executor& executor) {
  ASSERT_GE(executor.Workers(), 1);
  for (int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    Record record(tasks, executor.Workers());
    executor.ForEach(tasks, &Record::Task, &record);
    for (auto& count : record.seen) EXPECT_EQ(count.load(), 1) << tasks << " tasks";
    EXPECT_EQ(record.shared.load(), 0) << "a worker had two tasks at the same time";
    EXPECT_EQ(record.out_of_range.load(), 0);
  }
}

TEST(SerialExecutorTest, RunsEveryIndexOnceInOrderOnTheCallingThread) {
  Executor& executor = SerialExecutor();
  EXPECT_EQ(executor.Workers(), 1);
  ExpectEveryIndexOnce(executor);
  struct Context {
    std::thread::id caller = std::this_thread::get_id();
    int64_t next = 0;
  } context;
  executor.ForEach(
      100,
      [](void* raw, int64_t index, int worker) {
        Context& self = *static_cast<Context*>(raw);
        EXPECT_EQ(std::this_thread::get_id(), self.caller);
        EXPECT_EQ(index, self.next++);
        EXPECT_EQ(worker, 0);
      },
      &context);
  EXPECT_EQ(context.next, 100);
}

TEST(SerialExecutorTest, IsOneObjectForAllThreads) {
  Executor* other = nullptr;
  std::thread([&] {
    other = &SerialExecutor();
    ExpectEveryIndexOnce(*other);
  }).join();
  EXPECT_EQ(other, &SerialExecutor());
}

// An executor that breaks its promise: from phase `first` on it does `wrong` instead of each task
// once.
class Broken final : public Executor {
 public:
  using Calls = void (*)(int64_t tasks, Task task, void* context);
  Broken(int first, Calls wrong) : first_(first), wrong_(wrong) {}
  int Workers() const noexcept override { return 2; }
  void ForEach(int64_t tasks, Task task, void* context) noexcept override {
    if (first_-- <= 0) return wrong_(tasks, task, context);
    SerialExecutor().ForEach(tasks, task, context);
  }

 private:
  int first_;
  Calls wrong_;
};

TEST(BrokenExecutorTest, IsTold) {
  const Broken::Calls kWrong[] = {
      [](int64_t, Executor::Task, void*) {},
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 0; i < tasks - 1; ++i) task(context, i, 0);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 1; i < tasks; ++i) task(context, i, 0);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i, 0);
        task(context, 0, 0);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 1; i < tasks; ++i) task(context, i, 0);
        task(context, tasks - 1, 1);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 1; i <= tasks; ++i) task(context, i, 0);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i, i == 1 ? 2 : 0);
      },
      [](int64_t tasks, Executor::Task task, void* context) {
        for (int64_t i = 0; i < tasks; ++i) task(context, i, i == 1 ? -1 : 0);
      },
  };
  // Splits to merge, weights and a map of the mask: four phases of several tasks.
  test::ProblemSpec spec;
  spec.Hq = 4, spec.Hkv = 2, spec.Tq = 2, spec.Tk = 3001, spec.dk = 4, spec.dv = 4;
  spec.weights = true, spec.mask = test::Axes::kHQK;
  test::RandomProblem p(spec, 1);
  Plan plan;
  PlanOptions options;
  options.split_keys = 512;
  ASSERT_TRUE(Plan::Create(p.problem, options, &plan).ok());
  std::vector<char> memory(plan.WorkspaceBytes(2));
  const Workspace workspace = {memory.data(), memory.size()};
  BoundCall call;
  ASSERT_TRUE(Bind(plan, p.problem, workspace, 2, &call).ok());
  ASSERT_EQ(call.Phases(), 4);
  for (const Broken::Calls wrong : kWrong) {
    for (int first = 0; first < call.Phases(); ++first) {
      ASSERT_GT(call.Tasks(first), 1);
      for (bool planned : {false, true}) {
        Broken executor(first, wrong);
        const Status status = planned ? fovea::Run(plan, p.problem, workspace, executor)
                                      : Attention(p.problem, options, executor);
        EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << first;
        EXPECT_EQ(std::strncmp(status.message(), "executor ", 9), 0) << status.message();
      }
    }
  }
  Broken right(call.Phases(), kWrong[0]);
  EXPECT_TRUE(Attention(p.problem, options, right).ok());
}

#ifdef FOVEA_TEST_TBB

TEST(TbbExecutorTest, EveryIndexOnceWithWorkersToThemselves) {
  for (int threads : {1, 2, 3, 8}) {
    const std::unique_ptr<Executor> executor = MakeTbbExecutor(threads);
    ASSERT_NE(executor, nullptr);
    EXPECT_EQ(executor->Workers(), threads);
    for (int run = 0; run < 5; ++run) ExpectEveryIndexOnce(*executor);
  }
}

TEST(TbbExecutorTest, ZeroThreadsMeansTheDefault) {
  const std::unique_ptr<Executor> executor = MakeTbbExecutor();
  ASSERT_NE(executor, nullptr);
  EXPECT_GE(executor->Workers(), 1);
  ExpectEveryIndexOnce(*executor);
}

TEST(TbbExecutorTest, ServesCallsOfSeveralThreadsOneAtATime) {
  const std::unique_ptr<Executor> executor = MakeTbbExecutor(2);
  ASSERT_NE(executor, nullptr);
  for (int n = 0; n < 4; ++n) std::thread([&] { ExpectEveryIndexOnce(*executor); }).join();
}

TEST(TbbExecutorTest, CallersWithExecutorsOfTheirOwnDoNotMeet) {
  std::vector<std::thread> threads;
  for (int n = 0; n < 3; ++n) {
    threads.emplace_back([] {
      const std::unique_ptr<Executor> executor = MakeTbbExecutor(2);
      ASSERT_NE(executor, nullptr);
      ExpectEveryIndexOnce(*executor);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(TbbExecutorTest, WorksInsideATaskOfTheHost) {
  tbb::task_arena arena(2);
  arena.execute([] {
    tbb::task_group group;
    for (int n = 0; n < 4; ++n) {
      group.run([] {
        const std::unique_ptr<Executor> executor = MakeTbbExecutor(2);
        ASSERT_NE(executor, nullptr);
        ExpectEveryIndexOnce(*executor);
      });
    }
    group.wait();
  });
}

TEST(TbbExecutorTest, ATaskMayRunAnotherExecutor) {
  const std::unique_ptr<Executor> outer = MakeTbbExecutor(2);
  ASSERT_NE(outer, nullptr);
  std::atomic<int> inner_tasks{0};
  outer->ForEach(
      6,
      [](void* raw, int64_t, int) {
        const std::unique_ptr<Executor> inner = MakeTbbExecutor(2);
        ASSERT_NE(inner, nullptr);
        inner->ForEach(
            5, [](void* count, int64_t, int) { ++*static_cast<std::atomic<int>*>(count); }, raw);
      },
      &inner_tasks);
  EXPECT_EQ(inner_tasks.load(), 30);
}

// While a caller waits for its call, its thread must not pick up tasks that the host spawned
// before: they could hold the caller's locks.
TEST(TbbExecutorTest, AWaitingCallerTakesNoTaskOfTheHost) {
  thread_local bool inside = false;
  static std::atomic<int> intruders{0};
  intruders = 0;
  tbb::task_arena arena(1);
  arena.execute([] {
    const std::unique_ptr<Executor> executor = MakeTbbExecutor(2);
    ASSERT_NE(executor, nullptr);
    tbb::task_group group;
    for (int n = 0; n < 64; ++n) {
      group.run([] {
        if (inside) ++intruders;
      });
    }
    inside = true;
    Record record(256, executor->Workers());
    executor->ForEach(256, &Record::Task, &record);
    inside = false;
    group.wait();
  });
  EXPECT_EQ(intruders.load(), 0);
}

#endif  // FOVEA_TEST_TBB

}  // namespace
}  // namespace fovea
